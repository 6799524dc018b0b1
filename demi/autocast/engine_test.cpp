// The engine as a whole: layers as LibTorch's own autocast runs them, training with kept copies,
// threads.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <functional>
#include <thread>

#include "demi/autocast/autocast.h"
#include "demi/autocast/op_table.h"
#include "demi/weights/weights.h"

namespace demi {
namespace {

// LibTorch's own kernels, for comparison, its cache off: then the gradients of a weight that is
// used several times (in each step of an RNN) are summed in FP32, as demi sums them. With the cache
// on it sums them in 16 bits.
class LibTorchAutocast {
 public:
  explicit LibTorchAutocast(torch::Dtype dtype) {
    remove_kernels(torch::kCPU);
    at::autocast::set_autocast_enabled(torch::kCPU, true);
    at::autocast::set_autocast_dtype(torch::kCPU, dtype);
    at::autocast::set_autocast_cache_enabled(false);
    at::autocast::increment_nesting();
  }
  ~LibTorchAutocast() {
    at::autocast::set_autocast_cache_enabled(true);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(torch::kCPU, false);
    at::autocast::set_autocast_dtype(torch::kCPU, torch::kBFloat16);
    install_kernels(torch::kCPU);
  }
};

using Forward = std::function<std::vector<at::Tensor>()>;

struct Layer {
  const char* name;
  std::shared_ptr<torch::nn::Module> module;
  Forward forward;
};

template <class T>
std::vector<at::Tensor> both(const std::tuple<at::Tensor, T>& result) {
  if constexpr (std::is_same_v<T, at::Tensor>)
    return {std::get<0>(result), std::get<1>(result)};
  else
    return {std::get<0>(result), std::get<0>(std::get<1>(result)),
            std::get<1>(std::get<1>(result))};
}

template <class Holder, class... Inputs>
Layer layer(const char* name, Holder holder, Inputs... inputs) {
  return {name, holder.ptr(), [=]() mutable -> std::vector<at::Tensor> {
            using Result = decltype(holder->forward(inputs...));
            if constexpr (std::is_same_v<Result, at::Tensor>)
              return {holder->forward(inputs...)};
            else
              return both(holder->forward(inputs...));
          }};
}

std::vector<Layer> layers() {
  namespace nn = torch::nn;
  const auto sequence = torch::randn({3, 2, 8}), row = torch::randn({2, 8});
  return {
      layer("LSTM with projection", nn::LSTM(nn::LSTMOptions(8, 6).proj_size(3)), sequence),
      layer("GRU", nn::GRU(nn::GRUOptions(8, 6)), sequence),
      layer("RNN tanh", nn::RNN(nn::RNNOptions(8, 6)), sequence),
      layer("RNN relu", nn::RNN(nn::RNNOptions(8, 6).nonlinearity(torch::kReLU)), sequence),
      layer("LSTMCell", nn::LSTMCell(8, 6), row,
            std::optional<std::tuple<at::Tensor, at::Tensor>>(
                std::make_tuple(torch::randn({2, 6}), torch::randn({2, 6})))),
      layer("GRUCell", nn::GRUCell(8, 6), row, torch::randn({2, 6})),
      layer("RNNCell", nn::RNNCell(8, 6), row, torch::randn({2, 6})),
      layer("MultiheadAttention", nn::MultiheadAttention(8, 2), sequence, sequence, sequence),
      layer("Embedding", nn::Embedding(10, 4), torch::arange(6)),
      layer("Conv1d", nn::Conv1d(2, 3, 3), torch::randn({1, 2, 8})),
      layer("Conv2d", nn::Conv2d(2, 3, 3), torch::randn({1, 2, 8, 8})),
      layer("Conv3d", nn::Conv3d(2, 3, 2), torch::randn({1, 2, 4, 4, 4})),
      layer("ConvTranspose1d", nn::ConvTranspose1d(2, 3, 3), torch::randn({1, 2, 8})),
      layer("ConvTranspose2d", nn::ConvTranspose2d(2, 3, 3), torch::randn({1, 2, 8, 8})),
      layer("ConvTranspose3d", nn::ConvTranspose3d(2, 3, 2), torch::randn({1, 2, 4, 4, 4})),
      layer("Bilinear", nn::Bilinear(8, 8, 3), row, row),
      layer("BatchNorm1d", nn::BatchNorm1d(8), row),
      layer("LayerNorm", nn::LayerNorm(nn::LayerNormOptions({8})), row),
  };
}

struct Outcome {
  std::vector<at::Tensor> outputs, gradients;
};

Outcome run(const Layer& layer) {
  layer.module->zero_grad();
  Outcome outcome{layer.forward(), {}};
  at::Tensor loss = torch::zeros({});
  for (const auto& output : outcome.outputs) loss = loss + output.to(torch::kFloat).pow(2).sum();
  loss.backward();
  for (const auto& p : layer.module->parameters())
    if (p.grad().defined()) outcome.gradients.push_back(p.grad().clone());
  return outcome;
}

void expect_same(const std::vector<at::Tensor>& ours, const std::vector<at::Tensor>& theirs,
                 const char* what) {
  ASSERT_EQ(ours.size(), theirs.size()) << what;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_EQ(ours[i].scalar_type(), theirs[i].scalar_type()) << what << " " << i;
    EXPECT_TRUE(ours[i].equal(theirs[i])) << what << " " << i;
  }
}

Outcome in_libtorchs_autocast(const Layer& layer) {
  const LibTorchAutocast autocast(torch::kBFloat16);
  return run(layer);
}

Outcome in_a_region(const Layer& layer, c10::ScalarType dtype = torch::kBFloat16,
                    bool owned = false) {
  const auto parameters = layer.module->parameters();
  if (owned)
    for (const auto& p : parameters) weights::own(p);
  const Outcome outcome = [&] {
    const Autocast region(torch::kCPU, dtype);
    return run(layer);
  }();
  if (owned)
    for (const auto& p : parameters) weights::disown(p);
  return outcome;
}

TEST(Recurrent, AndAllOtherLayersRunAsInLibTorchsOwnAutocast) {
  torch::manual_seed(3);
  for (const auto& one : layers()) {
    SCOPED_TRACE(one.name);
    const auto theirs = in_libtorchs_autocast(one);
    for (const bool owned : {false, true}) {
      const auto ours = in_a_region(one, torch::kBFloat16, owned);
      expect_same(ours.outputs, theirs.outputs, "output");
      expect_same(ours.gradients, theirs.gradients, "gradient");
    }
  }
  EXPECT_EQ(weights::stats().copies, 0);
}

/// In the dtype of the parameters.
Layer lstm(const char* name, const torch::nn::LSTMOptions& options) {
  torch::nn::LSTM module(options);
  const auto sequence = torch::randn({30, 4, 8});
  return {name, module.ptr(), [=]() mutable {
            return both(module->forward(sequence.to(module->parameters()[0].scalar_type())));
          }};
}

std::vector<Layer> lstms() {
  const torch::nn::LSTMOptions options(8, 16);
  return {
      lstm("one layer", options),
      lstm("without biases", torch::nn::LSTMOptions(options).bias(false)),
      lstm("2 layers, both directions, batch first",
           torch::nn::LSTMOptions(options).num_layers(2).bidirectional(true).batch_first(true)),
  };
}

double distance(const std::vector<at::Tensor>& seen, const std::vector<at::Tensor>& exact) {
  double squares = 0, all = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    squares += (seen[i].to(torch::kDouble) - exact[i]).pow(2).sum().item<double>();
    all += exact[i].pow(2).sum().item<double>();
  }
  return std::sqrt(squares / all);
}

/// oneDNN's LSTM, which LibTorch runs; empty where it has none in bf16 for this processor (below
/// AVX-512) and throws.
std::optional<Outcome> onednns(const Layer& lstm) {
  try {
    return in_libtorchs_autocast(lstm);
  } catch (const std::exception&) {  // dnnl::error
    return std::nullopt;
  }
}

// demi's own layer (rnn/lstm_layer.h) sums and keeps c in FP32: as near to FP64 as oneDNN's, and in
// both dtypes on any processor.
TEST(Recurrent, LSTMIsAsNearToFP64AsOneDNNs) {
  torch::manual_seed(3);
  for (const auto& one : lstms()) {
    SCOPED_TRACE(one.name);
    const auto theirs = onednns(one);
    const auto bf16 = in_a_region(one), owned = in_a_region(one, torch::kBFloat16, true),
               fp16 = in_a_region(one, torch::kHalf);
    one.module->to(torch::kDouble);
    const auto exact = run(one);
    const auto expect_near = [&](const Outcome& ours, c10::ScalarType dtype, double rounding) {
      for (const auto& output : ours.outputs) EXPECT_EQ(output.scalar_type(), dtype);
      ASSERT_EQ(ours.gradients.size(), exact.gradients.size());
      EXPECT_LT(distance(ours.outputs, exact.outputs), rounding);
      EXPECT_LT(distance(ours.gradients, exact.gradients), 2 * rounding);
    };
    expect_near(bf16, torch::kBFloat16, 0x1p-8);
    expect_near(owned, torch::kBFloat16, 0x1p-8);
    expect_near(fp16, torch::kHalf, 0x1p-11);
    if (!theirs) continue;
    EXPECT_LE(distance(bf16.outputs, exact.outputs),
              1.1 * distance(theirs->outputs, exact.outputs));
    EXPECT_LE(distance(bf16.gradients, exact.gradients),
              1.1 * distance(theirs->gradients, exact.gradients));
  }
}

TEST(Recurrent, LSTMIsOneDNNsWhereDemisKernelsAreOff) {
  torch::manual_seed(3);
  for (const Layer& one : lstms()) {
    const auto theirs = onednns(one);
    if (!theirs) GTEST_SKIP() << "oneDNN has no LSTM in bf16 for this processor";
    EXPECT_FALSE(in_a_region(one).outputs[0].equal(theirs->outputs[0])) << one.name;
    setenv("DEMI_KERNELS", "aten", 1);
    expect_same(in_a_region(one).outputs, theirs->outputs, "output");
    unsetenv("DEMI_KERNELS");
  }
}

// Its large products go through FP32 where bf16 has no instructions, which a region would cast.
TEST(Recurrent, LSTMsBackwardInARegionGivesTheBitsOfOneOutside) {
  torch::manual_seed(3);
  for (const Layer& one : lstms()) {
    const auto inside = in_a_region(one).gradients;
    one.module->zero_grad();
    at::Tensor loss = torch::zeros({});
    {
      const Autocast region(torch::kCPU, torch::kBFloat16);
      for (const auto& output : one.forward()) loss = loss + output.to(torch::kFloat).pow(2).sum();
    }
    loss.backward();
    std::vector<at::Tensor> outside;
    for (const auto& p : one.module->parameters()) outside.push_back(p.grad().clone());
    expect_same(inside, outside, "gradient");
  }
}

torch::nn::Sequential perceptron() {
  return torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::ReLU(),
                               torch::nn::Linear(16, 4));
}

at::Tensor by_hand(const torch::nn::Sequential& model, const at::Tensor& x) {
  const auto p = model->parameters();
  const auto low = [](const at::Tensor& t) { return t.to(torch::kBFloat16); };
  const auto h = torch::relu(torch::addmm(low(p[1]), low(x), low(p[0]).t()));
  return torch::addmm(low(p[3]), h, low(p[2]).t());
}

// torch::optim::SGD writes through p.data(), which no version counter shows: copies checked by
// version alone are unchanged.
TEST(Training, WithKeptCopiesIsBitForBitTheHandWrittenOne) {
  torch::manual_seed(5);
  auto ours = perceptron();
  auto theirs = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(ours->clone());
  const auto x = torch::randn({4, 8}), wanted = torch::randn({4, 4});
  for (const auto& p : ours->parameters()) weights::own(p);
  torch::optim::SGD a(ours->parameters(), 0.1), b(theirs->parameters(), 0.1);
  const auto step = [&](torch::optim::Optimizer& optimizer, const at::Tensor& output) {
    const auto loss = torch::mse_loss(output.to(torch::kFloat), wanted);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    return loss.item<float>();
  };
  float first = 0, last = 0;
  for (int i = 0; i < 20; ++i) {
    at::Tensor output;
    {
      Autocast region(torch::kCPU, torch::kBFloat16);
      output = ours->forward(x);
    }
    last = step(a, output);
    if (i == 0) first = last;
    EXPECT_EQ(last, step(b, by_hand(theirs, x))) << "step " << i;
  }
  EXPECT_LT(last, 0.9 * first);
  for (const auto& p : ours->parameters()) weights::disown(p);
}

TEST(Training, ClonedReplacedAndMovedParameters) {
  auto model = perceptron();
  const auto x = torch::randn({2, 8});
  for (const auto& p : model->parameters()) weights::own(p);
  Autocast region(torch::kCPU, torch::kBFloat16);
  EXPECT_TRUE(model->forward(x).equal(by_hand(model, x)));
  const torch::nn::Sequential copy(
      std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone()));
  {
    torch::NoGradGuard no_grad;
    for (auto& p : copy->parameters()) p.mul_(2);
  }
  EXPECT_TRUE(copy.ptr()->forward(x).equal(by_hand(copy, x)));
  EXPECT_TRUE(model->forward(x).equal(by_hand(model, x)));
  const auto owned = model->parameters();
  model->to(torch::kDouble);
  model->to(torch::kFloat);
  (*model)[0]->as<torch::nn::Linear>()->weight.set_data(torch::randn({16, 8}));
  EXPECT_TRUE(model->forward(x).equal(by_hand(model, x)));
  for (const auto& p : owned) weights::disown(p);
}

TEST(Training, ASharedModuleCastsItsWeightOnceAndSumsItsGradient) {
  torch::nn::Linear shared(8, 8);
  const auto x = torch::randn({2, 8});
  weights::reset_stats();
  at::Tensor output;
  {
    Autocast region(torch::kCPU, torch::kBFloat16);
    output = shared->forward(shared->forward(x));
    EXPECT_EQ(weights::stats().casts, 2);
  }
  output.sum().backward();
  const auto grad = shared->weight.grad().clone();
  shared->zero_grad();
  const auto w = shared->weight.to(torch::kBFloat16), b = shared->bias.to(torch::kBFloat16);
  torch::addmm(b, torch::addmm(b, x.to(torch::kBFloat16), w.t()), w.t()).sum().backward();
  EXPECT_TRUE(torch::allclose(grad, shared->weight.grad(), 0.02, 0.02));
}

// Under TSan (OMP_NUM_THREADS=1) and ASan: two dtypes on shared frozen weights, while a third
// thread changes the policy and drops the copies that the others read.
// Which a gradient penalty does: the flag of a tensor within a graph means nothing to LibTorch.
TEST(Training, ATensorWithinAGraphIsNoLeafIfItsFlagIsSet) {
  torch::manual_seed(7);
  const auto kBf16 = torch::kBFloat16;
  const at::Tensor x = torch::randn({8, 8}), w = torch::randn({8, 8}).requires_grad_(),
                   v = torch::randn({8, 8}).requires_grad_();
  const auto gradients = [&](bool in_region) {
    const at::Tensor h = torch::mm(x, w).requires_grad_();
    at::Tensor y;
    if (in_region) {
      const Autocast region(torch::kCPU, kBf16);
      y = torch::mm(h, v);
    } else {
      y = torch::mm(h.to(kBf16), v.to(kBf16));
    }
    const auto of_h = torch::autograd::grad({y.sum()}, {h}, {}, /*retain_graph=*/true)[0];
    w.mutable_grad().reset();
    y.sum().backward();
    return std::vector<at::Tensor>{of_h, w.grad().clone()};
  };
  const auto seen = gradients(true), expected = gradients(false);
  for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_TRUE(seen[i].equal(expected[i])) << i;
}

TEST(Threads, TwoDtypesTrainOnSharedFrozenWeightsWhileAThirdChangesThePolicy) {
  torch::nn::Linear frozen(8, 8);
  for (auto& p : frozen->parameters()) p.set_requires_grad(false);
  weights::own(frozen->weight);
  std::atomic<bool> stop{false};
  { Autocast first(torch::kCPU); }
  OpPolicy other;
  other.set("mse_loss", OpCategory::unchanged);
  const auto train = [&](torch::Dtype dtype) {
    const auto w = torch::randn({8, 4}).set_requires_grad(true);
    const auto x = torch::randn({2, 8});
    const auto wanted =
        torch::addmm(frozen->bias.to(dtype), x.to(dtype), frozen->weight.to(dtype).t());
    for (int i = 0; i < 60; ++i) {
      at::Tensor loss;
      {
        Autocast region(torch::kCPU, dtype);
        const auto h = frozen->forward(x);
        ASSERT_EQ(h.scalar_type(), dtype);
        ASSERT_TRUE(h.equal(wanted));
        loss = torch::mm(h, w).to(torch::kFloat).pow(2).mean();
      }
      loss.backward();
      torch::NoGradGuard no_grad;
      w.sub_(w.grad(), 0.01);
      w.mutable_grad() = at::Tensor();
    }
  };
  std::thread changes([&] {
    while (!stop) {
      set_global_op_policy(other);
      set_global_op_policy(OpPolicy());
      weights::drop();
      std::this_thread::yield();
    }
  });
  std::thread bf16(train, torch::kBFloat16), fp16(train, torch::kHalf);
  bf16.join();
  fp16.join();
  stop = true;
  changes.join();
  weights::disown(frozen->weight);
  EXPECT_EQ(weights::stats().copies, 0);
}

}  // namespace
}  // namespace demi
