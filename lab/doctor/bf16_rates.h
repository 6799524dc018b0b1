#pragma once

#include <optional>
#include <string>

#include "demi/core/bf16_products.h"
#include "demi/core/export.h"
#include "lab/doctor/advice.h"

namespace demi::doctor {

/// The two ways to multiply bf16 numbers on this processor, and which of them is in use.
struct Bf16Rates {
  Bf16Choice choice;       // the one in use
  double bf16_tflops = 0;  // LibTorch's ops in bf16; 0: not measured
  double fp32_tflops = 0;  // through FP32
};

/// Measures each for about so many seconds.
DEMI_API Bf16Rates measure_bf16_rates(const Bf16Choice& choice, double seconds);

/// A sentence: both rates, and why one of them is in use. "" if they were not measured.
DEMI_API std::string describe(const Bf16Rates& rates);

/// Advice if the way in use is slower than the other by more than a fifth.
DEMI_API std::optional<Advice> of_bf16_rates(const Bf16Rates& rates);

}  // namespace demi::doctor
