#include "lab/bench/roofline.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "demi/core/error.h"
#include "lab/bench/timing.h"

namespace demi::bench {
namespace {

constexpr int64_t kLeastSize = 256;
constexpr int kRepeats = 3;

void require_right(SquareProduct& product) {
  const double error = product.error(), bound = error_bound(product.kind());
  if (error <= bound) return;
  throw TrainingError({.where = "bench.best_rate",
                       .what = product.kind().dtype + " products are wrong here",
                       .seen = fmt::format("an error of {:.3g}", error),
                       .accepted = fmt::format("at most {:.3g}", bound)});
}

}  // namespace

double attainable_tflops(const Roofline& roofline, double flop, double bytes) {
  const double let_through = roofline.copy_gb_per_s * 1e9 * flop / bytes / 1e12;
  return std::min(roofline.tflops, let_through);
}

double copy_gb_per_s(c10::Device device) {
  const int64_t bytes = int64_t{1} << (device.is_cpu() ? 27 : 30);
  const auto options = at::TensorOptions().device(device).dtype(at::kByte);
  const at::Tensor from = at::zeros({bytes}, options), to = at::empty({bytes}, options);
  Times times;
  for (int i = 0; i < 6; ++i) {
    const double ms = milliseconds(device, [&] { to.copy_(from); });
    if (i > 0) times.add(ms);
  }
  return 2 * static_cast<double>(bytes) / (1e6 * times.least());
}

ProductRate best_rate(const ProductKind& kind, c10::Device device, double seconds, int64_t most) {
  ProductRate best;
  double left = 1e3 * seconds;
  for (int64_t size = kLeastSize; size <= most; size *= 2) {
    SquareProduct product(kind, size, device);
    if (size == kLeastSize) require_right(product);
    double least = 0;
    for (int i = 0; i < kRepeats + 1 && left > 0; ++i) {
      const double ms = milliseconds(device, [&] { product.run(); });
      left -= ms;
      least = i == 0 ? ms : std::min(least, ms);
    }
    if (least <= 0) break;
    const double tflops = product.flop() / (1e9 * least);
    if (tflops > best.tflops) best = {tflops, size};
    if (8 * least * (kRepeats + 1) > left) break;
  }
  return best;
}

}  // namespace demi::bench
