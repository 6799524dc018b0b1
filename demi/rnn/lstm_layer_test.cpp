#include "demi/rnn/lstm_layer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "demi/core/error.h"
#include "demi/rnn/step_product.h"

namespace demi::rnn {
namespace {

using Tensors = std::vector<at::Tensor>;

/// x, w_ih, w_hh, b_ih, b_hh, h0, c0 with values that the dtype holds, and what becomes of the
/// three results in the loss.
struct Case {
  Tensors arguments, of_results;
  bool reverse = false;

  Case(int64_t times, int64_t sequences, int64_t inputs, int64_t hidden,
       at::ScalarType dtype = at::kBFloat16) {
    torch::manual_seed(7);
    const double range = 1 / std::sqrt(static_cast<double>(hidden));
    const auto values = [&](at::IntArrayRef shape, double width) {
      return ((torch::rand(shape) * 2 - 1) * width).to(dtype);
    };
    arguments = {values({times, sequences, inputs}, 1), values({4 * hidden, inputs}, range),
                 values({4 * hidden, hidden}, range),   values({4 * hidden}, range),
                 values({4 * hidden}, range),           values({sequences, hidden}, 1),
                 values({sequences, hidden}, 1)};
    of_results = {values({times, sequences, hidden}, 1), values({sequences, hidden}, 1),
                  values({sequences, hidden}, 1)};
  }

  Tensors leaves(at::ScalarType dtype) const {
    Tensors result;
    for (const auto& t : arguments) result.push_back(t.to(dtype).detach().requires_grad_());
    return result;
  }
};

Tensors ours(const Tensors& a, bool reverse) {
  const LstmWeights weights{a[1], a[2], a[3], a[4]};
  EXPECT_TRUE(lstm_layer_takes(a[0], weights, a[5], a[6]));
  const LstmResult result = lstm_layer(a[0], weights, a[5], a[6], reverse);
  return {result.output, result.hidden, result.cell};
}

/// The equations of torch.nn.LSTM's documentation, by operations that autograd differentiates.
Tensors equations(const Tensors& a, bool reverse) {
  const int64_t times = a[0].size(0), hidden = a[2].size(1);
  at::Tensor h = a[5], c = a[6];
  Tensors outputs(static_cast<size_t>(times));
  for (int64_t step = 0; step < times; ++step) {
    const int64_t t = reverse ? times - 1 - step : step;
    const at::Tensor sums = a[0][t].mm(a[1].t()) + a[3] + h.mm(a[2].t()) + a[4];
    const auto gate = [&](int64_t n) { return sums.narrow(1, n * hidden, hidden); };
    c = gate(1).sigmoid() * c + gate(0).sigmoid() * gate(2).tanh();
    h = gate(3).sigmoid() * c.tanh();
    outputs[static_cast<size_t>(t)] = h;
  }
  return {torch::stack(outputs), h, c};
}

Tensors gradients(const Tensors& results, const Tensors& of_results, const Tensors& leaves) {
  Tensors outputs, of_outputs;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!of_results[i].defined()) continue;
    outputs.push_back(results[i]);
    of_outputs.push_back(of_results[i].to(results[i].scalar_type()));
  }
  return torch::autograd::grad(outputs, leaves, of_outputs);
}

double distance(const at::Tensor& seen, const at::Tensor& exact) {
  return ((seen.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
}

/// Against the equations in FP64: relative distance of results and gradients as whole arrays, in
/// units of the dtype's rounding error.
void expect_near_the_equations(const Case& one) {
  const auto dtype = one.arguments[0].scalar_type();
  const double rounding = dtype == at::kHalf ? 0x1p-11 : 0x1p-8;
  const Tensors low = one.leaves(dtype), exact = one.leaves(at::kDouble);
  const Tensors seen = ours(low, one.reverse), expected = equations(exact, one.reverse);
  for (size_t i = 0; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i].scalar_type(), dtype);
    EXPECT_EQ(seen[i].sizes(), expected[i].sizes());
    EXPECT_LT(distance(seen[i], expected[i]), rounding) << "result " << i;
  }
  const Tensors g = gradients(seen, one.of_results, low),
                e = gradients(expected, one.of_results, exact);
  for (size_t i = 0; i < g.size(); ++i) {
    EXPECT_EQ(g[i].scalar_type(), dtype);
    EXPECT_LT(distance(g[i], e[i]), 3 * rounding) << "gradient " << i;
  }
}

TEST(LstmLayer, FollowsTheEquationsInAnyShape) {
  struct Shape {
    int64_t times, sequences, inputs, hidden;
  };
  for (const auto& [t, n, i, h] : {Shape{1, 1, 1, 1}, Shape{7, 5, 3, 4}, Shape{12, 33, 10, 16},
                                   Shape{20, 16, 32, 64}, Shape{3, 9, 7, 19}}) {
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      SCOPED_TRACE(testing::Message() << t << " " << n << " " << i << " " << h << " " << dtype);
      expect_near_the_equations(Case(t, n, i, h, dtype));
    }
  }
}

TEST(LstmLayer, ReadsBackwards) {
  Case one(9, 10, 6, 16);
  one.reverse = true;
  expect_near_the_equations(one);
}

/// The equations for each sequence alone, to its own end; zeros behind it.
Tensors equations_of_lengths(const Tensors& a, bool reverse, const std::vector<int64_t>& lengths) {
  const int64_t times = a[0].size(0);
  Tensors outputs, hidden, cell;
  for (size_t n = 0; n < lengths.size(); ++n) {
    Tensors one = a;
    const auto sequence = static_cast<int64_t>(n);
    one[0] = a[0].narrow(0, 0, lengths[n]).narrow(1, sequence, 1);
    for (const size_t state : {5, 6}) one[state] = a[state].narrow(0, sequence, 1);
    const Tensors of_one = equations(one, reverse);
    outputs.push_back(torch::constant_pad_nd(of_one[0], {0, 0, 0, 0, 0, times - lengths[n]}));
    hidden.push_back(of_one[1]);
    cell.push_back(of_one[2]);
  }
  return {torch::cat(outputs, 1), torch::cat(hidden), torch::cat(cell)};
}

// 17 sequences are split among threads where a thread has no step left at late times.
TEST(LstmLayer, SequencesMayEndAtDifferentTimes) {
  const std::vector<int64_t> lengths{9, 9, 9, 8, 7, 7, 7, 5, 4, 4, 3, 3, 3, 2, 1, 1, 1};
  const int64_t times = lengths[0], sequences = static_cast<int64_t>(lengths.size());
  std::vector<int64_t> running(static_cast<size_t>(times), 0);
  for (const int64_t length : lengths)
    for (int64_t t = 0; t < length; ++t) ++running[static_cast<size_t>(t)];
  at::Tensor runs = torch::zeros({times, sequences, 1}, at::kDouble);
  for (int64_t t = 0; t < times; ++t) runs[t].narrow(0, 0, running[static_cast<size_t>(t)]) += 1;
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const bool reverse : {false, true}) {
      SCOPED_TRACE(testing::Message() << dtype << " " << reverse);
      const double rounding = dtype == at::kHalf ? 0x1p-11 : 0x1p-8;
      Case one(times, sequences, 6, 16, dtype);
      // Past its end a sequence holds what must not count.
      one.arguments[0] = one.arguments[0] * runs.to(dtype) + (1 - runs).to(dtype) * 100;
      const Tensors low = one.leaves(dtype), exact = one.leaves(at::kDouble);
      const auto run = [&](const Tensors& a) {
        const auto r = lstm_layer(a[0], {a[1], a[2], a[3], a[4]}, a[5], a[6], reverse, running);
        return Tensors{r.output, r.hidden, r.cell};
      };
      Tensors seen = run(low);
      const Tensors expected = equations_of_lengths(exact, reverse, lengths);
      EXPECT_TRUE(seen[0].isfinite().all().item<bool>());
      for (size_t i = 0; i < 3; ++i) {
        const at::Tensor result = i == 0 ? seen[0].to(at::kDouble) * runs : seen[i];
        EXPECT_LT(distance(result, expected[i]), rounding) << "result " << i;
      }
      Tensors of_results = one.of_results;
      of_results[0] = of_results[0] * runs.to(dtype);
      const Tensors g = gradients(seen, of_results, low),
                    e = gradients(expected, of_results, exact);
      for (size_t i = 0; i < g.size(); ++i)
        EXPECT_LT(distance(g[i], e[i]), 3 * rounding) << "gradient " << i;

      const torch::NoGradGuard no_grad;  // keeps one c alone
      const Tensors again = run(low);
      for (const size_t i : {1, 2}) EXPECT_TRUE(torch::equal(again[i], seen[i])) << i;
    }
  }
}

TEST(LstmLayer, AnyOfTheResultsMayGoUnused) {
  for (size_t used = 0; used < 3; ++used) {
    Case one(6, 4, 5, 8);
    for (size_t i = 0; i < 3; ++i)
      if (i != used) one.of_results[i] = at::Tensor();
    SCOPED_TRACE(used);
    expect_near_the_equations(one);
  }
}

// More rows than a large product takes at a time.
TEST(LstmLayer, LongSequencesAreSummedWhole) { expect_near_the_equations(Case(70, 128, 3, 8)); }

TEST(LstmLayer, BiasesMayBeAbsent) {
  const Case one(6, 4, 5, 8);
  Tensors a = one.leaves(at::kBFloat16), exact = one.leaves(at::kDouble);
  const LstmWeights none{a[1], a[2], {}, {}}, only_recurrent{a[1], a[2], {}, a[4]};
  for (const auto& weights : {none, only_recurrent}) {
    ASSERT_TRUE(lstm_layer_takes(a[0], weights, a[5], a[6]));
    Tensors with = exact;
    with[3] = torch::zeros_like(exact[3]);
    if (!weights.b_hh.defined()) with[4] = with[3];
    const at::Tensor output = lstm_layer(a[0], weights, a[5], a[6], false).output;
    EXPECT_LT(distance(output, equations(with, false)[0]), 0x1p-8);
    const auto g = torch::autograd::grad({output.sum()}, {a[1]});
    const auto e = torch::autograd::grad({equations(with, false)[0].sum()}, {exact[1]});
    EXPECT_LT(distance(g[0], e[0]), 0x1p-7);
  }
}

TEST(LstmLayer, AnyArgumentAloneMayWantAGradient) {
  const Case one(6, 4, 5, 8);
  const Tensors all = one.leaves(at::kBFloat16);
  const Tensors expected = gradients(ours(all, false), one.of_results, all);
  for (size_t i = 0; i < all.size(); ++i) {
    Tensors a = one.arguments;
    a[i] = a[i].detach().clone().requires_grad_();
    const Tensors g = gradients(ours(a, false), one.of_results, {a[i]});
    EXPECT_TRUE(torch::equal(g[0], expected[i])) << i;
  }
}

TEST(LstmLayer, OnlyWantedGradientsAreMade) {
  const Case one(6, 4, 5, 8);
  Tensors a = one.leaves(at::kBFloat16);
  a[0] = a[0].detach();
  const Tensors results = ours(a, false);
  const Tensors g = gradients(results, one.of_results, {a[1], a[2]});
  const Tensors whole = one.leaves(at::kBFloat16);
  const Tensors expected = gradients(ours(whole, false), one.of_results, {whole[1], whole[2]});
  EXPECT_TRUE(torch::equal(g[0], expected[0]));
  EXPECT_TRUE(torch::equal(g[1], expected[1]));
}

TEST(LstmLayer, TheNumberOfThreadsChangesNoBit) {
  const Case one(10, 40, 12, 24);
  const auto run = [&](int threads) {
    at::set_num_threads(threads);
    const Tensors leaves = one.leaves(at::kBFloat16), results = ours(leaves, false);
    Tensors all = gradients(results, one.of_results, leaves);
    all.insert(all.end(), results.begin(), results.end());
    return all;
  };
  const int before = at::get_num_threads();
  const Tensors alone = run(1), four = run(4);
  at::set_num_threads(before);
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(torch::equal(alone[i], four[i])) << i;
}

TEST(LstmLayer, WithoutGradientsGivesTheSameBits) {
  const Case one(8, 4, 5, 8);
  const Tensors leaves = one.leaves(at::kBFloat16), with = ours(leaves, false);
  const torch::NoGradGuard no_grad;
  const Tensors without = ours(leaves, false);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(with[i].requires_grad());
    EXPECT_FALSE(without[i].requires_grad());
    EXPECT_TRUE(torch::equal(with[i], without[i]));
  }
}

TEST(LstmLayer, AWriteIntoTheOutputBeforeBackwardIsNoticed) {
  const Case one(4, 3, 5, 8);
  const Tensors leaves = one.leaves(at::kBFloat16);
  at::Tensor output = ours(leaves, false)[0];
  output.mul_(2);
  EXPECT_THROW(output.sum().backward(), c10::Error);
}

TEST(LstmLayer, ASecondDerivativeIsRefusedAndNotWrong) {
  const Case one(4, 3, 5, 8);
  const Tensors leaves = one.leaves(at::kBFloat16);
  const at::Tensor output = ours(leaves, false)[0];
  try {
    torch::autograd::grad({output.sum()}, {leaves[0]}, {}, true, /*create_graph=*/true);
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("second derivative"));
  }
}

// All CPU paths give the same bits, so the gradients do not show which one ran.
TEST(LstmLayer, KernelsMayBeSwitchedOffBeforeBackward) {
  const Case one(4, 3, 5, 8);
  const Tensors leaves = one.leaves(at::kBFloat16), others = one.leaves(at::kBFloat16);
  const Tensors expected = gradients(ours(leaves, false), one.of_results, leaves);
  const Tensors results = ours(others, false);
  setenv("DEMI_KERNELS", "aten", 1);
  const Tensors seen = gradients(results, one.of_results, others);
  unsetenv("DEMI_KERNELS");
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_TRUE(torch::equal(seen[i], expected[i])) << i;
}

TEST(LstmLayer, LeavesOtherThingsToOthers) {
  const Case one(4, 3, 5, 8);
  const Tensors& a = one.arguments;
  const LstmWeights weights{a[1], a[2], a[3], a[4]};
  EXPECT_TRUE(lstm_layer_takes(a[0], weights, a[5], a[6]));
  EXPECT_FALSE(lstm_layer_takes(a[0].to(at::kFloat), weights, a[5], a[6]));
  EXPECT_FALSE(lstm_layer_takes(a[0], weights, a[5].to(at::kHalf), a[6]));
  EXPECT_FALSE(lstm_layer_takes(a[0].narrow(2, 0, 4), weights, a[5], a[6]));
  EXPECT_FALSE(lstm_layer_takes(a[0].narrow(0, 0, 0), weights, a[5], a[6]));
  EXPECT_FALSE(lstm_layer_takes(a[0], weights, a[5].narrow(0, 0, 2), a[6]));
  setenv("DEMI_KERNELS", "aten", 1);
  EXPECT_FALSE(lstm_layer_takes(a[0], weights, a[5], a[6]));
  unsetenv("DEMI_KERNELS");
}

TEST(StepProduct, IsTheMatrixProduct) {
  torch::manual_seed(3);
  for (const auto& [k, n] : {std::pair<int64_t, int64_t>{6, 64}, {7, 48}, {64, 20}, {256, 1024}}) {
    const at::Tensor b = torch::randn({k, n}).to(at::kBFloat16),
                     a = torch::randn({5, k}).to(at::kBFloat16);
    const StepProduct product(b);
    const at::Tensor given = product.reads_fp32() ? a.to(at::kFloat) : a,
                     before = torch::randn({5, n});
    const at::Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble));
    for (const bool add : {false, true}) {
      at::Tensor c = before.clone();
      product(given.const_data_ptr(), c.mutable_data_ptr<float>(), 5, add);
      EXPECT_LT((c - (add ? exact + before : exact)).abs().max().item<double>(), 1e-4);
    }
  }
  StepProduct::release();
}

}  // namespace
}  // namespace demi::rnn
