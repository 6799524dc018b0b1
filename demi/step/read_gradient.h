#pragma once

#include <ATen/core/Tensor.h>

#include "demi/step/member.h"

namespace demi::optim {

/// Makes `gradient` the one that the passes read (Member::gradient): itself, or a copy if it is not
/// dense as the array that is updated, or of a dtype that the kernels do not read. Duplicates of a
/// sparse one are summed in fp32 or wider. `gradient` stays where it is until the step ends. Throws
/// UsageError for one that does not fit the parameter.
void set_read_gradient(Member& member, const at::Tensor& gradient);

}  // namespace demi::optim
