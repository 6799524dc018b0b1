#pragma once

#include <string_view>
#include <vector>

#include "demi/autocast/op_policy.h"

namespace demi {

/// The ops of AT_FORALL_FP32* in ATen/autocast_mode.h that the CPU lists do not name.
std::vector<OpRule> cuda_only_fp32_rules();

/// Ops outside LibTorch's lists for the CPU that throw when their arguments' dtypes differ. They
/// get a kernel of ours that changes nothing and explains that error.
std::vector<std::string> dtype_sensitive_ops();

}  // namespace demi
