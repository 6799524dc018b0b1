#include "lab/bench/peak.h"

#include <optional>

#include "lab/bench/roofline.h"
#include "lab/bench/square_product.h"

namespace demi::bench {
namespace {

constexpr double kSeconds = 0.1;
constexpr int64_t kMostRows = 4096;  // 200 MB of FP32

std::optional<ProductKind> kind_of(const Precision& precision, c10::Device device) {
  switch (precision.autocast.value_or(precision.weights)) {
    case c10::kHalf:
      return ProductKind{"fp16", precision.is_mixed()};
    case c10::kBFloat16:
      return ProductKind{"bf16", precision.is_mixed()};
    case c10::kFloat:
      return ProductKind{precision.tf32 && device.is_cuda() ? "tf32" : "fp32"};
    default:
      return std::nullopt;
  }
}

}  // namespace

double peak_flop_per_second(const Precision& precision, c10::Device device) {
  const auto kind = kind_of(precision, device);
  return kind ? 1e12 * best_rate(*kind, device, kSeconds, kMostRows).tflops : 0;
}

}  // namespace demi::bench
