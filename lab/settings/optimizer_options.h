#pragma once

#include <string_view>

#include "demi/core/state_dict.h"
#include "demi/optim/optimizer.h"

namespace demi::settings {

/// `--optimizer-options`: "eps=1e-6,beta2=0.95,centered=true" as an optimizer names its options in
/// group_numbers(). beta1 and beta2 are "betas.0" and "betas.1". Throws UsageError for what is not
/// NAME=NUMBER, and for a name given twice.
StateDict read_optimizer_options(std::string_view text);

/// Sets them in every group that has an option of the name. Beside Muon eps is that of the other
/// rule, which divides by another quantity, and muon_eps is Muon's. Throws UsageError for a name
/// that the optimizer does not have, for one that is a setting of its own (lr, ...), and for a
/// number out of its range.
void set_optimizer_options(optim::Optimizer& optimizer, std::string_view text);

/// `--betas`: "0.9,0.95", the decay rates of the moments in every group; "": as they are. Throws
/// UsageError for what is not two numbers, for an optimizer without them, and out of their range.
void set_betas(optim::Optimizer& optimizer, std::string_view text);

}  // namespace demi::settings
