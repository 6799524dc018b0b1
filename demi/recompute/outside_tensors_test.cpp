#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <vector>

#include "demi/autocast/autocast.h"
#include "demi/recompute/recompute.h"

// Functions that read and write tensors from outside. The truth is the same program without
// recompute: bits of gradients, of buffers and their versions.
namespace demi {
namespace {

using testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;
using Layer = std::function<at::Tensor(const at::Tensor&)>;
using Wrapped = std::function<Layer(Layer)>;

const RecomputeOptions kEach[] = {{}, {.keep = Keep::products}, {.early_stop = false}};

/// `program` makes its state anew, runs layers that it has wrapped, and returns all there is.
void expect_same(const std::function<Tensors(const Wrapped&)>& program) {
  const auto run = [&](const Wrapped& wrapped) {
    torch::manual_seed(5);
    return program(wrapped);
  };
  const Tensors want = run([](Layer layer) { return layer; });
  for (std::size_t which = 0; which < std::size(kEach); ++which) {
    const Tensors got = run([&](Layer layer) -> Layer {
      return [=](const at::Tensor& x) { return recompute(layer, x, kEach[which]); };
    });
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(torch::equal(got[i], want[i])) << which << " " << i << got[i] << want[i];
  }
}

at::Tensor version_of(const at::Tensor& tensor) {
  return torch::tensor(int64_t(tensor._version()));
}

TEST(OutsideTensors, ACounterThatIsReadAndThenWritten) {
  expect_same([](const Wrapped& wrapped) {
    auto n = torch::ones({}), x = torch::ones({}).requires_grad_();
    const Layer layer = wrapped([=](const at::Tensor& t) mutable {
      auto y = (t * n.clone()).square();
      n += 1;
      return y;
    });
    const auto y = layer(x);
    y.backward();
    EXPECT_EQ(x.grad().item<float>(), 2);
    return Tensors{y.detach(), x.grad(), n, version_of(n)};
  });
}

// Several calls before backward, each of which has found another value; a graph that is retained.
TEST(OutsideTensors, EachCallFindsWhatItsFirstRunFound) {
  expect_same([](const Wrapped& wrapped) {
    auto n = torch::ones({3}), x = torch::rand({3}).requires_grad_();
    const Layer layer = wrapped([=](const at::Tensor& t) mutable {
      const auto y = (t * n.clone()).sin().cos();
      n.mul_(1.5).add_(t.detach());
      return y * n.clone();
    });
    const auto y = layer(layer(x) + layer(x.square()));
    Tensors all{y.detach()};
    for (int i = 0; i < 2; ++i)
      all.push_back(torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true)[0]);
    all.insert(all.end(), {n, version_of(n)});
    return all;
  });
}

TEST(OutsideTensors, CallsNest) {
  expect_same([](const Wrapped& wrapped) {
    auto n = torch::ones({3}), x = torch::rand({3}).requires_grad_();
    const Layer inner = wrapped([=](const at::Tensor& t) mutable {
      const auto y = (t * n.clone()).sin().exp();
      n.mul_(1.5);
      return y;
    });
    const Layer outer = wrapped([=](const at::Tensor& t) mutable {
      const auto y = inner(inner(t) * n.clone()).cos();
      n.add_(1);
      return y.exp();
    });
    const auto y = outer(outer(x));
    y.sum().backward();
    return Tensors{y.detach(), x.grad(), n, version_of(n)};
  });
}

// The power iteration of torch.nn.utils.spectral_norm: the vectors move in each forward.
TEST(OutsideTensors, SpectralNorm) {
  for (const bool in_region : {false, true})
    expect_same([&](const Wrapped& wrapped) {
      auto weight = torch::randn({6, 5}).requires_grad_(),
           x = torch::randn({4, 5}).requires_grad_();
      auto u = torch::randn({6}), v = torch::randn({5});
      const Layer layer = wrapped([=](const at::Tensor& t) mutable {
        {
          const at::NoGradGuard no_grad;
          const auto unit = [](const at::Tensor& a) { return a / a.norm().clamp_min(1e-12); };
          v.copy_(unit(at::mv(weight.t(), u)));
          u.copy_(unit(at::mv(weight, v)));
        }
        const auto sigma = at::dot(u.clone(), at::mv(weight, v.clone()));
        return at::linear(t, weight / sigma).tanh();
      });
      Tensors all;
      for (int step = 0; step < 2; ++step) {
        at::Tensor loss;
        {
          const Autocast region(torch::kCPU, {.dtype = torch::kBFloat16, .enabled = in_region});
          loss = (layer(x) + layer(x * 2)).to(torch::kFloat).square().sum();
        }
        loss.backward();
      }
      all.insert(all.end(), {weight.grad(), x.grad(), u, v, version_of(u), version_of(v)});
      return all;
    });
}

// Vectors of a codebook that follow a mean of what chose them (van den Oord et al., Neural discrete
// representation learning, 2017, appendix A.1).
TEST(OutsideTensors, ACodebookOfMovingAverages) {
  expect_same([](const Wrapped& wrapped) {
    auto codes = torch::randn({7, 3}), counts = torch::ones({7}), sums = codes.clone();
    auto x = torch::randn({20, 3}).requires_grad_();
    const Layer layer = wrapped([=](const at::Tensor& t) mutable {
      const auto nearest = at::cdist(t.detach(), codes).argmin(1);
      const auto chosen = codes.index_select(0, nearest);
      {
        const at::NoGradGuard no_grad;
        const auto who = at::one_hot(nearest, 7).to(torch::kFloat);
        counts.mul_(0.5).add_(who.sum(0), 0.5);
        sums.mul_(0.5).add_(who.t().mm(t.detach()), 0.5);
        codes.copy_(sums / counts.unsqueeze(1));
      }
      return (t - chosen).square() * t.exp();
    });
    for (int step = 0; step < 3; ++step) layer(x).sum().backward();
    return Tensors{x.grad(), codes, counts, sums, version_of(codes)};
  });
}

// Statistics that are read before the layer writes them (Ioffe, Batch renormalization, 2017).
TEST(OutsideTensors, StatisticsThatAreReadBeforeTheyMove) {
  expect_same([](const Wrapped& wrapped) {
    torch::nn::BatchNorm1d norm(4);
    const auto x = torch::randn({6, 4}).requires_grad_();
    const Layer layer = wrapped([=](const at::Tensor& t) mutable {
      const auto r = norm->running_var.add(1e-5).sqrt();
      return norm->forward(t.exp()) * r;
    });
    for (int step = 0; step < 3; ++step) layer(x).square().sum().backward();
    Tensors all{x.grad()};
    for (const auto& b : norm->buffers()) all.insert(all.end(), {b, version_of(b)});
    for (const auto& p : norm->parameters()) all.push_back(p.grad());
    return all;
  });
}

TEST(OutsideTensors, AWeightThatTheFunctionBringsToANorm) {
  expect_same([](const Wrapped& wrapped) {
    auto table = torch::randn({9, 4}).requires_grad_(), x = torch::randn({3, 4}).requires_grad_();
    const Layer layer = wrapped([=](const at::Tensor& t) mutable {
      {
        const at::NoGradGuard no_grad;
        table.data().mul_(0.5);
      }
      return (t * table.index_select(0, torch::tensor({1, 5, 8}))).exp();
    });
    const auto y = layer(x);
    y.sum().backward();
    return Tensors{y.detach(), x.grad(), table.grad(), table.detach(), version_of(table)};
  });
}

// As autograd refuses it: what the graph has saved was written to.
TEST(OutsideTensors, RefusesASavedBufferThatTheFunctionWritesThen) {
  auto n = torch::ones({3});
  const auto x = torch::rand({3}).requires_grad_();
  const auto layer = [&](const at::Tensor& t) {
    const auto y = t * n;
    n += 1;
    return y;
  };
  const auto refused =
      testing::ThrowsMessage<c10::Error>(HasSubstr("modified by an inplace operation"));
  const auto plain = layer(x).sum(), y = recompute(layer, x).sum();
  EXPECT_THAT([&] { plain.backward(); }, refused);
  EXPECT_THAT([&] { y.backward(); }, refused);
}

// The function's own write comes first, so what the graph saved is still there.
TEST(OutsideTensors, ABufferThatIsWrittenAndThenSaved) {
  expect_same([](const Wrapped& wrapped) {
    auto n = torch::ones({3}), x = torch::rand({3}).requires_grad_();
    const Layer layer = wrapped([=](const at::Tensor& t) mutable {
      n += 1;
      return (t * n).exp();
    });
    layer(x).sum().backward();
    return Tensors{x.grad(), n, version_of(n)};
  });
}

TEST(OutsideTensors, RefusesWhatItReadsAndAnotherWroteInBetween) {
  auto n = torch::ones({3}), frozen = torch::randn({3, 3});
  const auto x = torch::rand({2, 3}).requires_grad_();
  for (const bool in_region : {false, true}) {
    at::Tensor y;
    {
      const Autocast region(torch::kCPU, {.dtype = torch::kBFloat16, .enabled = in_region});
      y = recompute([&](const at::Tensor& t) { return at::linear(t * n.clone(), frozen).exp(); },
                    x);
    }
    (in_region ? frozen : n).add_(1);
    EXPECT_THAT([&] { y.sum().backward(); }, testing::ThrowsMessage<c10::Error>(HasSubstr(
                                                 "a tensor that the function reads, Float (3")));
  }
}

// What the function made is no one's business, and what it borrowed may be gone by then.
TEST(OutsideTensors, KeepsNothingOfMemoryThatTheFunctionGaveUp) {
  const auto x = torch::rand({4}).requires_grad_();
  std::vector<std::vector<float>> lent;
  const auto layer = [&](const at::Tensor& t) {
    auto& memory = lent.emplace_back(4, 1.0F);
    {
      auto borrowed = torch::from_blob(memory.data(), {4});
      borrowed.add_(1);
    }
    memory.assign(4, 7.0F);
    return t.sin().exp();
  };
  lent.reserve(8);
  const auto y = recompute(layer, x, {.early_stop = false});
  y.sum().backward();
  for (const auto& memory : lent) EXPECT_THAT(memory, testing::Each(7.0F));
}

// Ranges that a program marks for its profile hide nothing.
TEST(OutsideTensors, SeesWritesWithinAMarkedRange) {
  expect_same([](const Wrapped& wrapped) {
    auto n = torch::ones({3}), x = torch::rand({3}).requires_grad_();
    const Layer layer = wrapped([=](const at::Tensor& t) mutable {
      RECORD_FUNCTION("a block", std::vector<c10::IValue>{});
      const auto y = (t * n.clone()).exp();
      n += 1;
      return y;
    });
    layer(x).sum().backward();
    return Tensors{x.grad(), n, version_of(n)};
  });
}

// rrelu_with_noise saves its noise before it draws it.
TEST(OutsideTensors, ATensorThatIsSavedBeforeItIsWritten) {
  for (const bool in_place : {false, true})
    expect_same([&](const Wrapped& wrapped) {
      const auto x = torch::randn({100}).requires_grad_();
      const Layer layer = wrapped([=](const at::Tensor& t) {
        auto y = t.sin();
        return in_place ? at::rrelu_(y, 0.1, 0.9, true) : at::rrelu(y, 0.1, 0.9, true);
      });
      const auto y = layer(x);
      torch::ones({100}).mul_(3);  // other memory
      y.sum().backward();
      return Tensors{y.detach(), x.grad()};
    });
}

}  // namespace
}  // namespace demi
