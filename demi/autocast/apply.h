#pragma once

#include <string_view>

#include "demi/autocast/op_policy.h"
#include "demi/autocast/policy.h"
#include "demi/core/export.h"

namespace torch::nn {
class Module;
}

namespace demi {

/// Gives a module and its children a policy of their own. Parameters and buffers are stored in the
/// policy's variable dtype (normalisation, too, as in Keras). In any autocast region, ops that take
/// one of these parameters run in the policy's compute dtype; if that is a 16-bit one, ops that
/// must run in FP32 still do. Only ops with an autocast kernel are affected (`demi policy` lists
/// them). Ops without a parameter follow the region, because LibTorch's modules have no hook around
/// forward.
///
/// module.clone() keeps the policy, on another device too, and so does every copy of a parameter
/// that clone() or to() makes under NoGradGuard. A new module that is filled with values
/// (torch::load, copy_) has none, nor has a clone that torch::load or set_data() gives other memory
/// before an op of a region has used it: apply it there again.
///
/// If applied twice, the last policy counts: apply to the whole model first, then to its parts.
/// Must not be called while another thread runs the module. Does not synchronise. Write
/// `demi::apply`: under `using namespace std`, or with arguments of std's types, the bare name also
/// means std::apply.
DEMI_API void apply(const Policy& policy, torch::nn::Module& module);

/// The form above for the module's part of that name ("encoder.layer1"). Throws UsageError with the
/// nearest known name if there is none.
DEMI_API void apply(const Policy& policy, torch::nn::Module& module, std::string_view part);

/// The policy's parts of the model compute in FP32: the form above with float32 for each of them.
/// Throws UsageError as that does, before anything is changed.
DEMI_API void apply(const OpPolicy& policy, torch::nn::Module& module);

/// The module follows its region again. Its stored dtypes do not change.
DEMI_API void unapply(torch::nn::Module& module);

}  // namespace demi
