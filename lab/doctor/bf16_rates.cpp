#include "lab/doctor/bf16_rates.h"

#include <fmt/format.h>

#include "lab/bench/roofline.h"

namespace demi::doctor {
namespace {

constexpr double kWrong = 1.2;

double rate(bool casts, double seconds) {
  return bench::best_rate({.dtype = "bf16", .casts = casts}, c10::kCPU, seconds).tflops;
}

}  // namespace

Bf16Rates measure_bf16_rates(const Bf16Choice& choice, double seconds) {
  return {choice, rate(/*casts=*/false, seconds), rate(/*casts=*/true, seconds)};
}

std::string describe(const Bf16Rates& rates) {
  if (rates.bf16_tflops <= 0 || rates.fp32_tflops <= 0) return "";
  const bool in_bf16 = rates.choice.products == Bf16Products::bf16;
  return fmt::format(
      "bf16 products run at {:.3f} TFLOP/s in bf16 and at {:.3f} through FP32; {} is used: {}.",
      rates.bf16_tflops, rates.fp32_tflops, in_bf16 ? "the former" : "the latter",
      rates.choice.because);
}

std::optional<Advice> of_bf16_rates(const Bf16Rates& rates) {
  if (rates.bf16_tflops <= 0 || rates.fp32_tflops <= 0) return std::nullopt;
  const bool in_bf16 = rates.choice.products == Bf16Products::bf16;
  const double used = in_bf16 ? rates.bf16_tflops : rates.fp32_tflops,
               other = in_bf16 ? rates.fp32_tflops : rates.bf16_tflops;
  if (other <= kWrong * used) return std::nullopt;
  const Bf16Products better = in_bf16 ? Bf16Products::fp32 : Bf16Products::bf16;
  return Advice{
      "bf16_products", other / used,
      fmt::format("bf16 products run {:.2f} times as fast {} as {}, which is in use ({})",
                  other / used, in_bf16 ? "through FP32" : "in bf16",
                  in_bf16 ? "in bf16" : "through FP32", rates.choice.because),
      fmt::format("DEMI_BF16_PRODUCTS={}, for all ranks and for resumed runs too: results differ "
                  "in the last bits",
                  name_of(better))};
}

}  // namespace demi::doctor
