#pragma once

#include <string>
#include <vector>

#include "demi/autocast/op_policy.h"
#include "demi/core/export.h"

namespace demi {

/// LibTorch's lists for this device, CPU, CUDA or another autocast device of LibTorch, each entry
/// with its reason.
DEMI_API std::vector<OpRule> default_op_rules(c10::DeviceType device);

/// The ops of AT_FORALL_FP32* in ATen/autocast_mode.h that the CPU lists do not name.
std::vector<OpRule> cuda_only_fp32_rules();

/// Ops outside LibTorch's lists for the CPU that throw if their arguments' dtypes differ. They get
/// a kernel that changes nothing and explains that error.
std::vector<std::string> dtype_sensitive_ops();

}  // namespace demi
