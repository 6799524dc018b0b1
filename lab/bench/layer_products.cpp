#include "lab/bench/layer_products.h"

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <optional>
#include <utility>

#include "demi/autocast/autocast.h"
#include "demi/core/error.h"
#include "demi/core/nearest.h"
#include "demi/weights/weights.h"
#include "lab/bench/timing.h"

namespace demi::bench {
namespace {

constexpr const char* kLayersWhere = "bench.layer_products";
constexpr double kOnceIsEnough = 2000;  // ms; LibTorch's fp16 takes a minute of some

struct Layer {
  std::string name;
  std::function<std::vector<at::Tensor>()> make;  // its FP32 leaves
  std::function<at::Tensor(const std::vector<at::Tensor>&)> op;
};

at::Tensor leaf(at::IntArrayRef sizes, double scale = 1) {
  return (at::randn(sizes) * scale).set_requires_grad(true);
}

double root(int64_t count) { return std::sqrt(static_cast<double>(count)); }

Layer linear(int64_t rows, int64_t in, int64_t out) {
  return {fmt::format("linear {} x {} to {}", rows, in, out),
          [=] {
            return std::vector{leaf({rows, in}), leaf({out, in}, 1 / root(in)), leaf({out})};
          },
          [](const auto& t) { return at::linear(t[0], t[1], t[2]); }};
}

Layer conv2d(int64_t batch, int64_t in, int64_t side, int64_t out, int64_t kernel) {
  return {fmt::format("conv2d {} x {} x {}², {}² to {}", batch, in, side, kernel, out),
          [=] {
            const auto last = [](const at::Tensor& t) {
              return t.detach().contiguous(at::MemoryFormat::ChannelsLast).set_requires_grad(true);
            };
            return std::vector{
                last(leaf({batch, in, side, side})),
                last(leaf({out, in, kernel, kernel}, 1 / root(in * kernel * kernel)))};
          },
          [kernel](const auto& t) { return at::conv2d(t[0], t[1], {}, 1, kernel / 2); }};
}

const std::vector<Layer>& layers() {
  static const std::vector<Layer> all{
      linear(512, 2048, 2048),    linear(64, 1024, 1024),      linear(64, 784, 128),
      linear(8, 1024, 1024),      linear(32, 64, 64),          conv2d(64, 64, 32, 64, 3),
      conv2d(64, 256, 8, 256, 3), conv2d(64, 256, 8, 1024, 1), conv2d(64, 3, 32, 64, 3)};
  return all;
}

// Uses LibTorch's own products until the end of the scope, then the user's choice again.
class LibTorchsProducts {
 public:
  LibTorchsProducts() {
    if (const char* given = std::getenv("DEMI_KERNELS")) given_ = given;
    setenv("DEMI_KERNELS", "aten", 1);
  }
  ~LibTorchsProducts() {
    given_ ? setenv("DEMI_KERNELS", given_->c_str(), 1) : unsetenv("DEMI_KERNELS");
  }
  LibTorchsProducts(const LibTorchsProducts&) = delete;
  LibTorchsProducts& operator=(const LibTorchsProducts&) = delete;

 private:
  std::optional<std::string> given_;
};

// Copies of the leaves live across regions, as those of an optimizer's parameters do.
class OwnedLeaves {
 public:
  explicit OwnedLeaves(std::vector<at::Tensor> leaves) : leaves_(std::move(leaves)) {
    for (const at::Tensor& t : leaves_) weights::own(t);
  }
  ~OwnedLeaves() {
    for (const at::Tensor& t : leaves_) weights::disown(t);
  }
  OwnedLeaves(const OwnedLeaves&) = delete;
  OwnedLeaves& operator=(const OwnedLeaves&) = delete;
  const std::vector<at::Tensor>& get() const { return leaves_; }

 private:
  std::vector<at::Tensor> leaves_;
};

/// Gradients and result, in a region of that dtype; FP32: without one.
std::vector<at::Tensor> forward_and_backward(const Layer& layer,
                                             const std::vector<at::Tensor>& leaves,
                                             at::ScalarType dtype) {
  at::Tensor result;
  {
    const Autocast region(c10::kCPU,
                          AutocastOptions{.dtype = dtype == at::kFloat ? at::kBFloat16 : dtype,
                                          .enabled = dtype != at::kFloat});
    result = layer.op(leaves);
  }
  auto all = torch::autograd::grad({result}, leaves, {at::ones_like(result)});
  all.push_back(result.detach());
  return all;
}

double greatest_distance(const std::vector<at::Tensor>& seen,
                         const std::vector<at::Tensor>& exact) {
  double worst = 0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const double distance =
        ((seen[i].to(at::kFloat) - exact[i]).norm() / exact[i].norm()).item<double>();
    worst = std::isfinite(distance) ? std::max(worst, distance) : INFINITY;
  }
  return worst;
}

LayerProductsRow measure_layer(const Layer& layer, const std::string& dtype, int rounds) {
  const at::ScalarType type = dtype == "fp16" ? at::kHalf : at::kBFloat16;
  const OwnedLeaves leaves(layer.make());
  LayerProductsRow row{.layer = layer.name, .dtype = dtype};
  row.error = greatest_distance(forward_and_backward(layer, leaves.get(), type),
                                forward_and_backward(layer, leaves.get(), at::kFloat));
  const double allowed = type == at::kHalf ? 0x1p-10 : 0x1p-7;
  if (row.error >= allowed)
    throw TrainingError({.where = kLayersWhere,
                         .what = layer.name + " is wrong in " + dtype,
                         .seen = fmt::format("{:.3g} from FP32", row.error),
                         .accepted = fmt::format("less than {:.3g}", allowed)});
  const auto time_of = [&](at::ScalarType one) {
    return milliseconds(c10::kCPU, [&] { forward_and_backward(layer, leaves.get(), one); });
  };
  Times fp32, demi, libtorch;
  for (int round = 0; round < rounds; ++round) {
    fp32.add(time_of(at::kFloat));
    demi.add(time_of(type));
    if (!libtorch.empty() && libtorch.most() > kOnceIsEnough) continue;
    const LibTorchsProducts aten;
    libtorch.add(time_of(type));
  }
  row.fp32_ms = fp32.median();
  row.demi_ms = demi.median();
  row.libtorch_ms = libtorch.median();
  return row;
}

void check(const LayerProductsOptions& options, bool any) {
  const std::vector<std::string> known{"bf16", "fp16"};
  for (const std::string& dtype : options.dtypes)
    if (std::ranges::find(known, dtype) == known.end())
      refuse({.where = kLayersWhere,
              .what = "no such dtype",
              .seen = dtype,
              .advice = did_you_mean(dtype, known)});
  if (options.rounds < 1)
    refuse({.where = kLayersWhere,
            .what = "rounds are out of range",
            .seen = std::to_string(options.rounds),
            .accepted = "1 or more"});
  if (!any)
    refuse({.where = kLayersWhere,
            .what = "no layer's name contains this",
            .seen = options.only,
            .advice = did_you_mean(options.only, layer_names())});
}

}  // namespace

std::vector<std::string> layer_names() {
  std::vector<std::string> names;
  for (const Layer& layer : layers()) names.push_back(layer.name);
  return names;
}

std::vector<LayerProductsRow> bench_layer_products(const LayerProductsOptions& options) {
  std::vector<const Layer*> asked;
  for (const Layer& layer : layers())
    if (layer.name.find(options.only) != std::string::npos) asked.push_back(&layer);
  check(options, !asked.empty());
  torch::manual_seed(0);
  std::vector<LayerProductsRow> rows;
  Parts parts(options.on_part, options.dtypes.size() * asked.size());
  for (const std::string& dtype : options.dtypes)
    for (const Layer* layer : asked) {
      parts.begin(layer->name + " in " + dtype);
      rows.push_back(measure_layer(*layer, dtype, options.rounds));
    }
  return rows;
}

}  // namespace demi::bench
