#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "demi/kernels/path.h"
#include "demi/step/backend.h"
#include "demi/step/member.h"
#include "demi/step/tensor_table.h"

namespace demi::optim {

/// The states of steps that devices decide, by the device's type and index.
using DeviceStates = std::map<std::pair<int, int>, at::Tensor>;

/// The members in tables: one a device, whatever their rules, and one for fp64, with the kernels
/// that serve it. `path`: of the kernels, if one is forced. A state that `states` lacks is made.
/// Throws UsageError while a device without a state is being captured, and for a path that cannot
/// be used.
std::vector<TensorTable> make_tables(const std::vector<GroupedMember>& grouped,
                                     const Groups& groups, const Backend& backend,
                                     std::optional<kernels::Path> path, DeviceStates& states);

}  // namespace demi::optim
