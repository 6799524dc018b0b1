// Weights as whole models use them: several times in one forward, and in long regions beside
// batches that die in them.
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <link.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string_view>

#include "demi/autocast/autocast.h"
#include "demi/optim/sgd.h"
#include "demi/weights/weights.h"

namespace demi {
namespace {

namespace nn = torch::nn;
using at::Tensor;

constexpr int kUses = 400;
constexpr optim::StepOptions kNarrow{.low_precision_grads = true};

template <class Model>
Tensor uses(Model& model, const Tensor& input, bool mixed, bool one_region) {
  std::optional<Autocast> region;
  if (one_region) region.emplace(torch::kCPU, AutocastOptions{.enabled = mixed});
  Tensor loss = torch::zeros({});
  for (int i = 0; i < kUses; ++i) {
    std::optional<Autocast> here;
    if (!one_region) here.emplace(torch::kCPU, AutocastOptions{.enabled = mixed});
    loss = loss + model(input).to(torch::kFloat).sum();
  }
  return loss;
}

// Inputs of 1 and outputs with a gradient of 1: each use's gradient is exact in bf16, and 400 of
// them are not summed there.
template <class Model>
void expect_gradients_of_fp32(Model model, const Tensor& input) {
  uses(model, input, false, true).backward();
  std::vector<Tensor> wanted;
  for (const auto& p : model->parameters()) wanted.push_back(p.grad().clone());
  for (const bool one_region : {true, false}) {
    optim::SGD optimizer(model->parameters(), 0.1, {.low_precision_grads = one_region});
    optimizer.zero_grad();
    uses(model, input, true, one_region).backward();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const auto seen = model->parameters()[i].grad().to(torch::kDouble);
      EXPECT_LE((seen - wanted[i]).norm().template item<double>(),
                1e-3 * wanted[i].norm().template item<double>())
          << "parameter " << i << ": " << seen.flatten()[0].template item<double>() << " for "
          << wanted[i].flatten()[0].template item<float>();
    }
  }
}

TEST(SharedWeights, OfALinearLayer) {
  expect_gradients_of_fp32(nn::Linear(64, 64), torch::ones({4, 64}));
}

TEST(SharedWeights, OfAConvolution) {
  expect_gradients_of_fp32(nn::Conv2d(2, 3, 3), torch::ones({1, 2, 5, 5}));
}

TEST(SharedWeights, OfATransposedConvolution) {
  expect_gradients_of_fp32(nn::ConvTranspose2d(2, 3, 2), torch::ones({1, 2, 3, 3}));
}

TEST(SharedWeights, GradientsOfAWeightUsedOnceStayIn16Bits) {
  nn::Conv1d model(8, 8, 1);  // a Linear's weight comes as a view
  optim::SGD optimizer(model->parameters(), 0.1, kNarrow);
  Tensor loss;
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    {
      const Autocast region(torch::kCPU, torch::kBFloat16);
      loss = model(torch::ones({2, 8, 3})).sum();  // the graph before lives until here
    }
    loss.backward();
    for (const auto& p : model->parameters())
      EXPECT_EQ(p.grad().scalar_type(), torch::kBFloat16) << step;
    optimizer.step();
  }
}

/// Casts of tensors with so many elements that `work` makes.
std::int64_t casts_of(std::int64_t elements, const std::function<void()>& work) {
  static thread_local std::int64_t size = 0, seen = 0;
  size = elements;
  seen = 0;
  const auto on_start = [](const at::RecordFunction& op) -> std::unique_ptr<at::ObserverContext> {
    if (std::string_view(op.name()) == "aten::_to_copy")
      seen += op.inputs()[0].toTensor().numel() == size;
    return nullptr;
  };
  const auto handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(on_start).needsInputs(true));
  work();
  at::removeCallback(handle);
  return seen;
}

// FP32: one cast of each gradient, behind backward. 16 bits: none.
TEST(SteadyState, CastsNoWeightAndIn16BitsNoGradientEither) {
  for (const bool narrow : {true, false}) {
    nn::Sequential model(nn::Linear(32, 24), nn::ReLU(), nn::Linear(24, 32));  // 768 elements each
    optim::SGD optimizer(model->parameters(), 0.1, {.low_precision_grads = narrow});
    const auto x = torch::randn({4, 32});
    const auto step = [&] {
      optimizer.zero_grad();
      Tensor loss;
      {
        const Autocast region(torch::kCPU, torch::kBFloat16);
        loss = model->forward(x).to(torch::kFloat).pow(2).mean();
      }
      loss.backward();
      optimizer.step();
    };
    for (int i = 0; i < 2; ++i) step();
    for (int i = 0; i < 2; ++i) EXPECT_EQ(casts_of(768, step), narrow ? 0 : 2);
  }
}

// An unrolled cell, in which each use's input depends on the one before: truth is FP64.
TEST(SharedWeights, OfAnUnrolledCellAreAsNearToFP64AsOneUseAtATime) {
  torch::manual_seed(2);
  nn::Linear cell(16, 16);
  const auto x = torch::randn({100, 8, 16});
  const auto unrolled = [&](c10::ScalarType dtype) {
    Tensor h = torch::zeros({8, 16}, dtype), all = torch::zeros({}, dtype);
    for (int t = 0; t < x.size(0); ++t) {
      h = torch::tanh(cell(h.to(dtype) + x[t].to(dtype)));
      all = all + h.to(dtype).sum();
    }
    return all;
  };
  cell->to(torch::kDouble);
  unrolled(torch::kDouble).backward();
  const auto exact = cell->bias.grad().clone();
  cell->to(torch::kFloat);
  const auto distance = [&](bool low_precision_grads) {
    optim::StepOptions options;
    options.low_precision_grads = low_precision_grads;
    optim::SGD optimizer(cell->parameters(), 0.1, options);
    optimizer.zero_grad();
    Tensor loss;
    {
      const Autocast region(torch::kCPU, torch::kBFloat16);
      loss = unrolled(torch::kFloat);
    }
    loss.backward();
    return (cell->bias.grad().to(torch::kDouble) - exact).norm().item<double>() /
           exact.norm().item<double>();
  };
  const double widened = distance(false);
  EXPECT_LT(widened, 0.02);
  EXPECT_LT(distance(true), widened + 1e-3);
}

// zero_grad(false) leaves zeros in 16 bits; the next gradient must not be added to them there.
TEST(SharedWeights, ZeroGradThatKeepsTheTensors) {
  nn::Linear model(8, 8);
  optim::SGD optimizer(model->parameters(), 0.0, kNarrow);
  const auto backward = [&](double factor) {
    Tensor loss;
    {
      const Autocast region(torch::kCPU, torch::kBFloat16);
      loss = (model(torch::ones({1, 8})) * factor).sum();
    }
    loss.backward();
  };
  backward(256);
  EXPECT_EQ(model->bias.grad().scalar_type(), torch::kBFloat16);
  optimizer.zero_grad(/*set_to_none=*/false);
  EXPECT_TRUE(model->bias.grad().defined());
  EXPECT_EQ(model->bias.grad().abs().max().item<float>(), 0);
  for (int round = 0; round < 2; ++round) {
    backward(256);
    backward(1);
    EXPECT_TRUE(model->bias.grad().to(torch::kFloat).equal(torch::full({8}, 257.)))
        << model->bias.grad();
    optimizer.step();
    optimizer.zero_grad(/*set_to_none=*/false);
  }
}

struct Batch {
  Tensor data;  // a second handle of what a loop has in a local variable
};

template <class Forward>
std::int64_t most_copies(int batches, const Forward& forward) {
  std::int64_t most = 0;
  const torch::NoGradGuard no_grad;
  const Autocast region(torch::kCPU, torch::kBFloat16);
  for (int i = 0; i < batches; ++i) {
    const Batch batch{torch::randn({4, 16})};
    const auto x = batch.data;
    forward(x);
    most = std::max(most, weights::stats().copies);
  }
  return most;
}

TEST(LongRegions, KeepTheModelsCopiesAndNoneOfDeadBatches) {
  nn::Linear a(16, 16), b(16, 16);
  for (auto& p : b->parameters()) p.set_requires_grad(false);
  weights::reset_stats();
  EXPECT_EQ(most_copies(300, [&](const Tensor& x) { b(a(x)); }), 4);
  EXPECT_EQ(weights::stats().casts, 4);
  // A batch that several layers take has a copy, which may stay until the next one wants room.
  EXPECT_LE(most_copies(300, [&](const Tensor& x) { return a(x) + b(x) + b(x); }), 4 + 10);
  EXPECT_EQ(weights::stats().copies, 0);
}

TEST(LongRegions, ElementsOfAListAreNoWeights) {
  OpPolicy policy;
  for (const char* op : {"einsum", "linalg_multi_dot", "chain_matmul"})
    policy.set(op, OpCategory::lower_precision);
  const torch::NoGradGuard no_grad;
  const Autocast region(torch::kCPU, AutocastOptions{.policy = policy});
  for (int i = 0; i < 30; ++i) {
    const auto x = torch::randn({4, 4}), y = torch::randn({4, 4}), z = torch::randn({4, 4});
    for (int again = 0; again < 2; ++again) {
      torch::einsum("ij,jk->ik", {x, y});
      torch::linalg_multi_dot({x, y, z});
      torch::chain_matmul({x, y});
    }
    ASSERT_EQ(weights::stats().copies, 0);
  }
}

// Libraries that are loaded by dlopen share what glibc keeps free of static TLS, 1,664 bytes unless
// told otherwise (glibc.rtld.optional_static_tls).
TEST(StaticTls, OfTheLibraryIsSmallEnoughToBeLoadedAtRunTime) {
  std::size_t bytes = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* library, std::size_t, void* result) {
        if (std::string_view(library->dlpi_name).find("libdemi.so") == std::string_view::npos)
          return 0;
        for (int i = 0; i < library->dlpi_phnum; ++i)
          if (library->dlpi_phdr[i].p_type == PT_TLS)
            *static_cast<std::size_t*>(result) = library->dlpi_phdr[i].p_memsz;
        return 1;
      },
      &bytes);
  EXPECT_GT(bytes, 0);
  EXPECT_LT(bytes, 512);
}

}  // namespace
}  // namespace demi
