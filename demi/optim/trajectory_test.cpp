// demi's optimizers against Python PyTorch over 1,000 steps (benchmarks/peers/trajectories.py).
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>

#include "demi/optim/adam.h"
#include "demi/optim/adamw.h"
#include "demi/optim/sgd.h"
#include "demi/optim/testing.h"
#include "demi/optim/trajectories_testing.h"

namespace demi::optim {
namespace {

using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

template <class Kind, class Options>
Make make(const Options& options) {
  return [options](std::vector<at::Tensor> parameters) {
    return std::make_unique<Kind>(std::move(parameters), options);
  };
}

const std::map<std::string, Make>& cases() {
  static const std::map<std::string, Make> all{
      {"sgd", make<SGD>(SGDOptions(1e-3))},
      {"sgd_momentum", make<SGD>(SGDOptions(1e-3).momentum(0.9).dampening(0.1).weight_decay(1e-2))},
      {"sgd_nesterov", make<SGD>(SGDOptions(1e-3).momentum(0.9).nesterov(true))},
      {"sgd_maximize", make<SGD>(SGDOptions(1e-5).maximize(true))},
      {"adam", make<Adam>(AdamOptions(1e-2).weight_decay(1e-2))},
      {"adam_amsgrad", make<Adam>(AdamOptions(1e-2).amsgrad(true))},
      {"adamw", make<AdamW>(AdamWOptions(1e-2).weight_decay(1e-2))},
      {"adamw_amsgrad", make<AdamW>(AdamWOptions(1e-2).amsgrad(true).betas({0.8, 0.99}))}};
  return all;
}

std::vector<double> values(const nlohmann::json& row) { return row.get<std::vector<double>>(); }

at::Tensor walk(const Make& make, int steps) {
  std::vector<float> start, target;
  for (int i = 0; i < 16; ++i) {
    start.push_back(static_cast<float>(std::cos(static_cast<double>(i))));
    target.push_back(static_cast<float>(std::sin(3.0 * i)));
  }
  const at::Tensor p = torch::tensor(start).requires_grad_(), t = torch::tensor(target);
  const auto optimizer = make({p});
  for (int step = 0; step < steps; ++step) {
    {
      const at::NoGradGuard no_grad;
      const at::Tensor d = p - t;
      p.mutable_grad() = d * 2 + d * d * d * 4;
    }
    optimizer->step();
  }
  return p.detach();
}

// Python's own implementations (loop, foreach, fused) differ in fp32 by rounding. demi may be no
// further from the fp64 trajectory than the furthest of them, but for one unit in the last place.
void expect_within_pythons_spread(const char* path) {
  const testing::ScopedEnvironment forced("DEMI_KERNELS", path);
  for (const auto& [name, make] : cases()) {
    const auto& python = trajectories().at("optimizers").at(name);
    const auto exact = values(python.at("exact").back());
    const at::Tensor mine = walk(make, 1000);
    double spread = 0;
    for (const char* how : {"loop", "foreach", "fused"}) {
      const auto other = values(python.at(how));
      for (size_t i = 0; i < exact.size(); ++i)
        spread = std::max(spread, std::abs(other[i] - exact[i]));
    }
    for (size_t i = 0; i < exact.size(); ++i)
      EXPECT_NEAR(mine[static_cast<int64_t>(i)].item<double>(), exact[i],
                  spread + 6e-8 * std::abs(exact[i]))
          << name << " " << path;
  }
}

TEST(Trajectory, AgreesWithPythonWithinItsOwnFp32Spread) {
  expect_within_pythons_spread("reference");
}
TEST(Trajectory, TensorOperationsToo) { expect_within_pythons_spread("aten"); }

}  // namespace
}  // namespace demi::optim
