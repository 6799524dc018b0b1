// Muon against torch.optim.Muon, its formula in FP64, muon-optimizer and ultralytics' MuSGD
// (benchmarks/peers/muon_peers.py).
#include "demi/optim/muon.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "demi/core/source_dir_testing.h"
#include "demi/optim/testing.h"

namespace demi::optim {
namespace {

using namespace testing;
using nlohmann::json;

const json& peer() {
  static const json numbers =
      json::parse(std::ifstream(source_dir() / "benchmarks/peers/muon.json"));
  return numbers;
}

/// The bits are those of LibTorch's operators for processors without FMA: the program begins with
/// the variable, or compares within a tolerance. ctest runs both.
bool has_default_operators() {
  const char* capability = std::getenv("ATEN_CPU_CAPABILITY");
  return capability != nullptr && std::string_view(capability) == "default";
}

/// cos and sin as Python's math gives them, rounded once to FP32.
at::Tensor of_elements(at::IntArrayRef shape, int seed, double (*value)(double)) {
  std::vector<float> all;
  for (int64_t i = 0; i < c10::multiply_integers(shape); ++i)
    all.push_back(static_cast<float>(value(static_cast<double>(i) + 0.37 * seed)));
  return torch::tensor(all).reshape(shape);
}
double target_of(double x) { return std::sin(3.0 * x); }
double start_of(double x) { return std::cos(x); }

struct Walk {
  std::vector<int64_t> shape;
  int seed = 0;
  at::ScalarType dtype = at::kFloat;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
};

/// The parameter after each of the file's steps: (steps, shape).
at::Tensor track_of(const Walk& walk, const MuonOptions& options, StepOptions step_options = {}) {
  const at::Tensor p = of_elements(walk.shape, walk.seed, start_of)
                           .to(walk.dtype)
                           .contiguous(walk.format)
                           .requires_grad_();
  const at::Tensor target = of_elements(walk.shape, walk.seed, target_of).to(walk.dtype);
  Muon muon({p}, options, step_options);
  const auto steps = peer().at("steps").get<std::vector<int>>();
  std::vector<at::Tensor> track;
  for (int step = 1; step <= steps.back(); ++step) {
    {
      const at::NoGradGuard no_grad;
      const at::Tensor part =
          (torch::arange(p.numel()) * 7 + step * 13 + walk.seed * 5).remainder(29) - 14;
      p.mutable_grad() =
          (part.reshape(walk.shape).to(walk.dtype) / 16 + (p - target) / 4).contiguous(walk.format);
    }
    muon.step();
    if (std::count(steps.begin(), steps.end(), step))
      track.push_back(p.detach().clone(at::MemoryFormat::Contiguous));
  }
  return at::stack(track);
}

Walk walk_of(const json& one) {
  return {.shape = one.at("shape").get<std::vector<int64_t>>(), .seed = one.at("seed").get<int>()};
}

at::Tensor expected_of(const json& one, const char* name, const Walk& walk) {
  std::vector<at::Tensor> all;
  for (const json& row : one.at(name))
    all.push_back(torch::tensor(row.get<std::vector<double>>(), at::kDouble).reshape(walk.shape));
  return at::stack(all).to(walk.dtype);
}

MuonOptions options_of(const json& given) {
  MuonOptions options;
  for (const auto& [name, value] : given.items()) {
    if (name == "lr") options.lr(value);
    if (name == "weight_decay") options.weight_decay(value);
    if (name == "momentum") options.momentum(value);
    if (name == "nesterov") options.nesterov(value);
    if (name == "eps") options.eps(value);
    if (name == "ns_steps") options.ns_steps(value);
    if (name == "ns_coefficients") options.ns_coefficients({value[0], value[1], value[2]});
    if (name == "polar_express") options.polar_express(value);
    if (name == "sgd") options.sgd(value);
    if (name == "muon") options.muon(value);
    if (name == "adjust_lr_fn")
      options.adjust_lr(value == "match_rms_adamw" ? AdjustLr::match_rms_adamw
                                                   : AdjustLr::spectral_unclamped);
  }
  return options;
}

class Alone {
 public:
  explicit Alone(int threads = 1) : before_(at::get_num_threads()) { at::set_num_threads(threads); }
  ~Alone() { at::set_num_threads(before_); }

 private:
  int before_;
};

TEST(Muon, HasTorchsBits) {
  const Alone alone;
  for (const char* path : {"", "reference", "aten"}) {
    const ScopedEnvironment forced("DEMI_KERNELS", path);
    for (const json& one : peer().at("muon")) {
      const Walk walk = walk_of(one);
      const at::Tensor seen =
          track_of(walk, options_of(one.at("options")).products(MatrixProducts::bf16));
      const at::Tensor expected = expected_of(one, "fp32", walk);
      if (has_default_operators())
        EXPECT_TRUE(at::equal(seen, expected)) << one.at("name") << path << seen - expected;
      else
        EXPECT_TRUE(at::allclose(seen, expected, 0, 2e-2)) << one.at("name") << path;
    }
  }
}

TEST(Muon, FollowsTheFormulaInFp64) {
  for (const char* path : {"", "reference", "aten"}) {
    const ScopedEnvironment forced("DEMI_KERNELS", path);
    for (const json& one : peer().at("fp64"))
      for (const auto dtype : {at::kFloat, at::kDouble}) {
        Walk walk = walk_of(one);
        walk.dtype = dtype;
        const at::Tensor seen =
            track_of(walk, options_of(one.at("options")).products(MatrixProducts::fp32));
        EXPECT_TRUE(at::allclose(seen, expected_of(one, "fp64", walk), 1e-3, 1e-4))
            << one.at("options") << one.at("shape") << path << dtype;
      }
  }
}

TEST(Muon, FlattensConvolutionsInMemoryOrder) {
  for (const json& one : peer().at("fp64")) {
    Walk walk = walk_of(one);
    if (walk.shape.size() != 4) continue;
    walk.format = at::MemoryFormat::ChannelsLast;
    const at::Tensor seen =
        track_of(walk, options_of(one.at("options")).products(MatrixProducts::fp32));
    EXPECT_TRUE(at::allclose(seen, expected_of(one, "fp64", walk), 1e-3, 1e-4))
        << one.at("options");
  }
}

TEST(Muon, HasMuonOptimizersRateOfAKernelsSides) {
  for (const json& one : peer().at("convolutions")) {
    const Walk walk = walk_of(one);
    const at::Tensor seen = track_of(
        walk,
        MuonOptions(2e-2).weight_decay(1e-2).kernel_sides(true).products(MatrixProducts::bf16));
    EXPECT_TRUE(at::allclose(seen, expected_of(one, "fp32", walk), 0, 3e-2))
        << one.at("name") << one.at("seed") << (seen - expected_of(one, "fp32", walk)).abs().max();
  }
}

TEST(Muon, WithSgdIsMuSGD) {
  for (const json& one : peer().at("musgd")) {
    const Walk walk = walk_of(one);
    const at::Tensor seen = track_of(
        walk, MuonOptions(1e-2).weight_decay(1e-2).momentum(0.9).sgd(1.0).muon(0.2).products(
                  MatrixProducts::bf16));
    EXPECT_TRUE(at::allclose(seen, expected_of(one, "fp32", walk), 0, 3e-2))
        << one.at("name") << one.at("seed") << (seen - expected_of(one, "fp32", walk)).abs().max();
  }
}

// In FP32: the bits of LibTorch's products in bf16 depend on the number of threads on processors
// with AMX.
TEST(Muon, ThreadsChangeNoBit) {
  for (const auto& shape : {std::vector<int64_t>{130, 200}, {300, 70}}) {
    std::vector<at::Tensor> seen;
    for (const int threads : {1, 2, 3}) {
      const Alone some(threads);
      seen.push_back(track_of({.shape = shape}, MuonOptions(1e-2).products(MatrixProducts::fp32)));
    }
    for (const at::Tensor& other : seen) EXPECT_TRUE(at::equal(other, seen[0])) << shape;
  }
}

}  // namespace
}  // namespace demi::optim
