#pragma once

#include <string_view>

#include "demi/autocast/policy.h"
#include "demi/core/export.h"

namespace torch::nn {
class Module;
}

namespace demi {

/// Gives a module, with all its children, a policy of its own: its parameters and buffers are
/// stored in the policy's variable dtype (normalisation too, as in Keras), and inside any autocast
/// region the ops that take one of its parameters run in the policy's compute dtype, whatever the
/// region says; ops that must run in FP32 still do where the policy is a 16-bit one. Ops without a
/// parameter follow the region: LibTorch's modules have no hook around forward. Reaches the ops
/// that have an autocast kernel (`demi policy` lists them). Applied again, the last one counts, so
/// a part of a model is changed after the whole. Not while another thread runs the module. Does not
/// synchronise. Write `demi::apply`: under `using namespace std`, or with arguments of std's types,
/// the bare name also means std::apply.
DEMI_API void apply(const Policy& policy, torch::nn::Module& module);

/// As above for the part of that name ("encoder.layer1"). Throws UsageError with the nearest right
/// name.
DEMI_API void apply(const Policy& policy, torch::nn::Module& module, std::string_view part);

/// The module follows its region again. Stored dtypes stay.
DEMI_API void unapply(torch::nn::Module& module);

}  // namespace demi
