// Products and convolutions through FP32 against the same op in FP64 on the same rounded numbers.
#include "demi/products/ops.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "demi/products/through_fp32.h"

namespace demi::products {
namespace {

using Tensors = std::vector<at::Tensor>;
using Op = std::function<at::Tensor(const Tensors&)>;

double rounding_of(at::ScalarType dtype) { return dtype == at::kHalf ? 0x1p-11 : 0x1p-8; }

Tensors leaves_of(const Tensors& values, at::ScalarType dtype) {
  Tensors result;
  for (const auto& t : values) result.push_back(t.to(dtype).detach().requires_grad_());
  return result;
}

/// Every element within its own rounding and FP32's errors of a sum of terms of size one.
/// `summed_after`: how many rounded terms of size one it is the sum of.
void expect_rounded_once(const at::Tensor& seen, const at::Tensor& exact, const char* what,
                         int summed_after = 0) {
  ASSERT_EQ(seen.sizes(), exact.sizes()) << what;
  const double rounding = rounding_of(seen.scalar_type());
  const at::Tensor error = (seen.to(at::kDouble) - exact).abs(),
                   allowed = (exact.abs() * 1.01 + 4 * summed_after) * rounding + 1e-4 +
                             1e-5 * exact.abs().max();
  EXPECT_TRUE((error <= allowed).all().item<bool>())
      << what << ": " << (error - allowed).max().item<double>() << " too far";
}

/// Values, first and second gradients of `ours` in `dtype` beside `theirs` in FP64. Values and
/// first gradients are one product each, so rounded once.
void compare(const Tensors& values, at::ScalarType dtype, const Op& ours, const Op& theirs,
             int summed_after) {
  Tensors rounded;
  for (const auto& t : values) rounded.push_back(t.to(dtype));
  const Tensors low = leaves_of(rounded, dtype), exact = leaves_of(rounded, at::kDouble);
  const at::Tensor seen = ours(low), expected = theirs(exact);
  EXPECT_EQ(seen.scalar_type(), dtype);
  expect_rounded_once(seen, expected, "value");

  const at::Tensor of_result = torch::randn(expected.sizes(), torch::kDouble).to(dtype);
  const auto gradients = [&](const at::Tensor& result, const Tensors& leaves, bool again) {
    const auto of = of_result.to(result.scalar_type()).requires_grad_(again);
    return torch::autograd::grad({result}, leaves, {of}, true, again, /*allow_unused=*/false);
  };
  const Tensors g = gradients(seen, low, false), e = gradients(expected, exact, false);
  for (std::size_t i = 0; i < g.size(); ++i) {
    EXPECT_EQ(g[i].scalar_type(), dtype);
    expect_rounded_once(g[i], e[i], "gradient", summed_after);
  }

  // The gradient of the sum of squares of the first gradients: a penalty.
  const auto penalty = [](const Tensors& first) {
    at::Tensor sum = torch::zeros({}, at::kDouble);
    for (const auto& t : first) sum = sum + t.to(at::kDouble).square().sum() / 100;
    return sum;
  };
  const Tensors g2 = gradients(seen, low, true), e2 = gradients(expected, exact, true);
  const Tensors second = torch::autograd::grad({penalty(g2)}, {low[0], low[1]}),
                second_exact = torch::autograd::grad({penalty(e2)}, {exact[0], exact[1]});
  for (std::size_t i = 0; i < second.size(); ++i)
    EXPECT_LT((second[i].to(at::kDouble) - second_exact[i]).norm().item<double>(),
              4 * rounding_of(dtype) * second_exact[i].norm().item<double>())
        << "second gradient " << i;

  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(torch::equal(ours(low), seen)) << "without gradients";
}

class Products : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!slow_in(GetParam()))
      GTEST_SKIP() << "this processor multiplies " << GetParam() << " itself";
    torch::manual_seed(5);
  }
  // Products of which a sum of n stays about 1.
  static at::Tensor values(at::IntArrayRef sizes, int64_t terms = 1) {
    return torch::randn(sizes) / std::sqrt(double(terms));
  }
  void check(const Tensors& inputs, const Op& ours, const Op& theirs, int summed_after = 0) {
    compare(inputs, GetParam(), ours, theirs, summed_after);
  }
};

INSTANTIATE_TEST_SUITE_P(Both, Products, ::testing::Values(at::kBFloat16, at::kHalf),
                         [](const auto& one) { return one.param == at::kHalf ? "fp16" : "bf16"; });

OptionalTensor bias_in(const Tensors& t) {
  return t.size() > 2 ? std::optional(t[2]) : std::nullopt;
}

TEST_P(Products, LinearOfAnyShape) {
  const auto ours = [](const Tensors& t) {
    return products::linear(t[0], t[1], bias_in(t)).value();
  };
  const auto theirs = [](const Tensors& t) { return at::linear(t[0], t[1], bias_in(t)); };
  for (const auto& [rows, in, out] : {std::array<int64_t, 3>{33, 65, 130},
                                      {300, 40, 20},
                                      {4, 1100, 1000},     // pieces of the weight
                                      {1200, 1000, 4},     // pieces of the input
                                      {20, 60000, 30}}) {  // pieces of the sum
    SCOPED_TRACE(testing::Message() << rows << " " << in << " " << out);
    check({values({rows, in}), values({out, in}, in), values({out})}, ours, theirs);
    check({values({rows, in}), values({out, in}, in)}, ours, theirs);
  }
  check({values({6, 7, 32}), values({48, 32}, 32), values({48})}, ours, theirs);
  check({values({32, 9}).t(), values({32, 48}, 32).t(), values({48})}, ours, theirs);
  check({values({64, 128}).slice(1, 0, 128, 2), values({48, 64}, 64)}, ours, theirs);
}

TEST_P(Products, MatrixProducts) {
  check(
      {values({40, 30}), values({30, 70}, 30)},
      [](const Tensors& t) { return products::mm(t[0], t[1]).value(); },
      [](const Tensors& t) { return at::mm(t[0], t[1]); });
  const auto ours = [](const Tensors& t) { return products::bmm(t[0], t[1]).value(); };
  const auto theirs = [](const Tensors& t) { return at::bmm(t[0], t[1]); };
  check({values({5, 17, 20}), values({5, 20, 33}, 20)}, ours, theirs);
  check({values({5, 20, 17}).transpose(1, 2), values({5, 33, 20}, 20).transpose(1, 2)}, ours,
        theirs);
  check({values({40, 200, 40}), values({40, 40, 200}, 40)}, ours, theirs);     // several at a time
  check({values({2, 4, 1100}), values({2, 1100, 1000}, 1100)}, ours, theirs);  // one by one
}

TEST_P(Products, AddendsAreScaledAndBroadcast) {
  for (const auto& scales : {std::pair{1.0, 1.0}, {0.5, -2.0}, {0.0, 3.0}}) {
    const double beta = scales.first, alpha = scales.second;
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{30, 50}, {50}, {30, 1}, {}}) {
      SCOPED_TRACE(testing::Message() << beta << " " << alpha << " " << sizes);
      check(
          {values({30, 20}), values({20, 50}, 20), values(sizes)},
          [&](const Tensors& t) { return products::addmm(t[2], t[0], t[1], beta, alpha).value(); },
          [&](const Tensors& t) { return at::addmm(t[2], t[0], t[1], beta, alpha); });
    }
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{4, 30, 50}, {4, 1, 50}, {30, 50}}) {
      check(
          {values({4, 30, 20}), values({4, 20, 50}, 20), values(sizes)},
          [&](const Tensors& t) {
            return products::baddbmm(t[2], t[0], t[1], beta, alpha).value();
          },
          [&](const Tensors& t) { return at::baddbmm(t[2], t[0], t[1], beta, alpha); });
    }
  }
}

TEST_P(Products, MatmulBroadcastsItsBatches) {
  const auto ours = [](const Tensors& t) { return products::matmul(t[0], t[1]).value(); };
  const auto theirs = [](const Tensors& t) { return at::matmul(t[0], t[1]); };
  using Shapes = std::pair<std::vector<int64_t>, std::vector<int64_t>>;
  for (const auto& [a, b] : {Shapes{{40, 30}, {30, 50}},
                             {{3, 5, 40, 30}, {30, 50}},
                             {{40, 30}, {3, 30, 50}},
                             {{3, 40, 30}, {3, 30, 50}},
                             {{2, 3, 40, 30}, {3, 30, 50}},
                             {{1, 40, 30}, {2, 3, 30, 50}}}) {
    SCOPED_TRACE(testing::Message() << a << " " << b);
    // A gradient is summed over the batches that its matrix was spread to.
    check({values(a), values(b, 30)}, ours, theirs, /*summed_after=*/6);
  }
}

struct Shape {
  std::vector<int64_t> input, weight, stride{1}, padding{0}, dilation{1};
  int64_t groups = 1;
  bool bias = true;
};

int64_t terms(const Shape& s) {
  int64_t n = 1;
  for (std::size_t i = 1; i < s.weight.size(); ++i) n *= s.weight[i];
  return n;
}

at::Tensor fp64_conv(const Tensors& t, const Shape& s, bool transposed,
                     const std::vector<int64_t>& output_padding) {
  const bool batched = t[0].dim() == t[1].dim();
  const auto spatial = static_cast<std::size_t>(t[1].dim() - 2);
  const auto spread = [&](const std::vector<int64_t>& list) {
    return list.size() == 1 ? std::vector<int64_t>(spatial, list[0]) : list;
  };
  const auto result = at::convolution(batched ? t[0] : t[0].unsqueeze(0), t[1], bias_in(t),
                                      spread(s.stride), spread(s.padding), spread(s.dilation),
                                      transposed, spread(output_padding), s.groups);
  return batched ? result : result.squeeze(0);
}

TEST_P(Products, ConvolutionsOfAnyShape) {
  for (const Shape& s :
       {Shape{{8, 16, 40}, {32, 16, 5}}, Shape{{4, 16, 20, 20}, {32, 16, 3, 3}, {2}, {1}},
        Shape{{4, 16, 20, 20}, {32, 16, 3, 3}, {1, 2}, {2, 0}, {2, 1}},
        Shape{{4, 32, 20, 20}, {32, 8, 3, 3}, {1}, {1}, {1}, 4},
        Shape{{4, 32, 16, 16}, {64, 32, 1, 1}, {1}, {0}, {1}, 1, false},
        Shape{{16, 40, 40}, {32, 16, 3, 3}},             // no batch
        Shape{{70, 8, 64, 64}, {8, 8, 3, 3}, {2}, {1}},  // some pictures at a time
        Shape{{70, 8, 33, 60}, {16, 8, 3, 3}, {1}, {1}, {1}, 1, false},
        Shape{{2, 8, 10, 10, 10}, {16, 8, 3, 3, 3}, {1}, {1}}}) {
    Tensors inputs{values(s.input), values(s.weight, terms(s))};
    if (s.bias) inputs.push_back(values({s.weight[0]}));
    SCOPED_TRACE(testing::Message() << s.input << " " << s.weight);
    const auto ours = [&](const Tensors& t) {
      return products::conv(t[1].dim() - 2, t[0], t[1], bias_in(t),
                            c10::fromIntArrayRefSlow(s.stride), c10::fromIntArrayRefSlow(s.padding),
                            c10::fromIntArrayRefSlow(s.dilation), s.groups)
          .value();
    };
    check(inputs, ours, [&](const Tensors& t) { return fp64_conv(t, s, false, {0}); });
  }
}

bool stands_in_graph(const torch::autograd::Node* node, const char* name) {
  if (!node) return false;
  if (node->name().find(name) != std::string::npos) return true;
  for (const auto& edge : node->next_edges())
    if (stands_in_graph(edge.function.get(), name)) return true;
  return false;
}

// Splits by rows, by columns, by matrices of a batch and by parts of the sums.
TEST_P(Products, ThreadsChangeNoBit) {
  const auto product = [](const at::Tensor& a, const at::Tensor& b) {
    return (a.dim() == 2 ? products::mm(a, b) : products::bmm(a, b)).value();
  };
  for (const auto& [a_sizes, b_sizes] :
       {std::pair<std::vector<int64_t>, std::vector<int64_t>>{{20, 60001}, {60001, 30}},
        {{1100, 300}, {300, 90}},
        {{90, 300}, {300, 1100}},
        {{300, 4100}, {4100, 100}},
        {{3, 70, 300}, {3, 300, 130}}}) {
    const auto a = values(a_sizes).to(GetParam()), b = values(b_sizes).to(GetParam());
    const int before = at::get_num_threads();
    at::set_num_threads(1);
    const at::Tensor alone = product(a, b);
    for (const int threads : {2, 3}) {
      at::set_num_threads(threads);
      EXPECT_TRUE(at::equal(product(a, b), alone)) << a.sizes() << " by " << threads << " threads";
    }
    at::set_num_threads(before);
  }
}

TEST_P(Products, OperandsOfAnyStrides) {
  const auto a = values({40, 600}).to(GetParam()), b = values({600, 50}).to(GetParam());
  const auto expect_same = [](const at::Tensor& left, const at::Tensor& right) {
    const auto dense = [](const at::Tensor& t) { return t.clone(at::MemoryFormat::Contiguous); };
    const at::Tensor seen =
        left.dim() == 2 ? products::mm(left, right).value() : products::bmm(left, right).value();
    const at::Tensor wanted = left.dim() == 2 ? products::mm(dense(left), dense(right)).value()
                                              : products::bmm(dense(left), dense(right)).value();
    EXPECT_TRUE(at::equal(seen, wanted)) << left.strides() << " by " << right.strides();
  };
  expect_same(a.t().contiguous().t(), b);
  expect_same(a, b.t().contiguous().t());
  expect_same(a.slice(1, 0, 600, 2), b.slice(0, 0, 600, 2).slice(1, 0, 50, 3));
  expect_same(a.narrow(1, 7, 300), b.narrow(0, 7, 300).narrow(1, 3, 20));
  expect_same(a.narrow(0, 0, 1).expand({40, 600}), b.narrow(1, 0, 1).expand({600, 50}));
  expect_same(a.narrow(1, 0, 1).expand({40, 600}), b.narrow(0, 0, 1).expand({600, 50}));
  expect_same(a.expand({3, 40, 600}), b.expand({3, 600, 50}));
  expect_same(a.view({4, 10, 600}).transpose(1, 2).contiguous().transpose(1, 2),
              b.view({600, 5, 10}).movedim(1, 0).narrow(0, 0, 4));
}

// Pointwise convolutions of channels-last pictures are matrix products; those that only look like
// one are not.
TEST_P(Products, PointwiseConvolutionsOfChannelsLast) {
  const std::vector<c10::SymInt> one{1}, none{0};
  const auto last = [](const at::Tensor& t) {
    return t.contiguous(t.dim() == 4 ? at::MemoryFormat::ChannelsLast
                                     : at::MemoryFormat::ChannelsLast3d);
  };
  for (const auto& [is_product, shape] :
       {std::pair{true, Shape{{2, 8, 80, 144}, {24, 8, 1, 1}}},
        {true, Shape{{1, 24, 8, 30, 48}, {8, 24, 1, 1, 1}}},
        {true, Shape{{2, 24, 80, 144}, {8, 24, 1, 1}, {1}, {0}, {1}, 1, /*bias=*/false}},
        {true, Shape{{4, 32, 8, 8}, {64, 32, 1, 1}}},
        {false, Shape{{2, 24, 80, 144}, {8, 24, 1, 1}, {2}}},
        {false, Shape{{2, 24, 80, 144}, {8, 24, 1, 1}, {1, 2}}},
        {false, Shape{{2, 24, 80, 144}, {8, 24, 1, 1}, {1}, {1}}},
        {false, Shape{{2, 24, 80, 144}, {8, 12, 1, 1}, {1}, {0}, {1}, 2}},
        {false, Shape{{2, 24, 80, 144}, {8, 24, 1, 3}}}}) {
    const Shape& s = shape;  // clang 14 captures no structured binding
    SCOPED_TRACE(testing::Message() << s.input << " " << s.weight << " " << s.stride);
    const auto ours = [&](const Tensors& t) {
      return products::conv(t[1].dim() - 2, last(t[0]), t[1], bias_in(t),
                            c10::fromIntArrayRefSlow(s.stride), c10::fromIntArrayRefSlow(s.padding),
                            c10::fromIntArrayRefSlow(s.dilation), s.groups)
          .value();
    };
    Tensors inputs{values(s.input), values(s.weight, terms(s))};
    if (s.bias) inputs.push_back(values({s.weight[0]}));
    check(inputs, ours, [&](const Tensors& t) { return fp64_conv(t, s, false, {0}); });

    const auto x = last(values(s.input).to(GetParam())).requires_grad_();
    const auto y = ours({x, values(s.weight, terms(s)).to(GetParam())});
    EXPECT_EQ(stands_in_graph(y.grad_fn().get(), "ProductFunction"), is_product);
    EXPECT_EQ(stands_in_graph(y.grad_fn().get(), "ConvolutionFunction"), !is_product);
    EXPECT_TRUE(last(y).is_same(y));
    const auto gradient = torch::autograd::grad({y.sum()}, {x})[0];
    EXPECT_TRUE(last(gradient).is_same(gradient));
  }
  // LibTorch spreads no bias.
  const auto x = last(values({4, 32, 8, 8}).to(GetParam())),
             w = values({64, 32, 1, 1}).to(GetParam()), few = values({1}).to(GetParam());
  EXPECT_THROW(products::conv(2, x, w, few, one, none, one, 1), c10::Error);

  const Shape transposed{{4, 32, 8, 8}, {32, 32, 1, 1}};
  check(
      {values(transposed.input), values(transposed.weight, 32)},
      [&](const Tensors& t) {
        return products::conv_transpose(2, last(t[0]), t[1], {}, one, none, none, 1, one).value();
      },
      [&](const Tensors& t) { return fp64_conv(t, transposed, true, {0}); });
}

TEST_P(Products, ConvolutionsKeepChannelsLast) {
  const auto low = [&](at::IntArrayRef sizes) {
    return values(sizes).to(GetParam()).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
  };
  const auto x = low({4, 16, 20, 20}), w = low({32, 16, 3, 3});
  const std::vector<c10::SymInt> one{1};
  const auto y = products::conv(2, x, w, std::nullopt, one, one, one, 1).value();
  EXPECT_TRUE(y.is_contiguous(at::MemoryFormat::ChannelsLast));
  y.backward(torch::ones_like(y));
  EXPECT_TRUE(x.grad().is_contiguous(at::MemoryFormat::ChannelsLast));
}

TEST_P(Products, PaddingByName) {
  for (const std::string padding : {"same", "valid"}) {
    const Shape s{{4, 16, 20, 20}, {32, 16, 3, 5}, {1}, {0}, {2, 1}};
    const std::vector<c10::SymInt> stride{1}, dilation{2, 1};
    check(
        {values(s.input), values(s.weight, terms(s)), values({32})},
        [&](const Tensors& t) {
          return products::conv_padded(2, t[0], t[1], bias_in(t), stride, padding, dilation, 1)
              .value();
        },
        [&](const Tensors& t) {
          return at::conv2d(t[0], t[1], bias_in(t), {1}, padding, s.dilation);
        });
  }
  // Sides that differ, and what LibTorch refuses, are LibTorch's.
  const auto x = values({4, 16, 20, 20}).to(GetParam()),
             even = values({32, 16, 4, 4}).to(GetParam()),
             odd = values({32, 16, 3, 3}).to(GetParam());
  const std::vector<c10::SymInt> one{1}, two{2};
  EXPECT_FALSE(products::conv_padded(2, x, even, {}, one, "same", one, 1));
  EXPECT_FALSE(products::conv_padded(2, x, odd, {}, two, "same", one, 1));
  EXPECT_FALSE(products::conv_padded(2, x, odd, {}, one, "full", one, 1));
}

TEST_P(Products, TransposedConvolutions) {
  for (const Shape& s : {Shape{{4, 32, 30}, {32, 16, 5}, {2}, {1}},
                         Shape{{4, 32, 10, 10}, {32, 16, 3, 3}, {2}, {1}, {1}},
                         Shape{{4, 32, 10, 10}, {32, 4, 3, 3}, {2}, {1}, {2}, 4},
                         Shape{{2, 16, 6, 6, 6}, {16, 8, 3, 3, 3}, {2}, {1}}}) {
    SCOPED_TRACE(testing::Message() << s.input << " " << s.weight);
    const auto ours = [&](const Tensors& t) {
      const std::vector<c10::SymInt> outer{1};
      return products::conv_transpose(t[1].dim() - 2, t[0], t[1], bias_in(t),
                                      c10::fromIntArrayRefSlow(s.stride),
                                      c10::fromIntArrayRefSlow(s.padding), outer, s.groups,
                                      c10::fromIntArrayRefSlow(s.dilation))
          .value();
    };
    check({values(s.input), values(s.weight, terms(s)), values({s.weight[1] * s.groups})}, ours,
          [&](const Tensors& t) { return fp64_conv(t, s, true, {1}); });
  }
}

// A weight of another rank than the op's would say which convolution was meant, wrongly.
TEST_P(Products, ConvolutionsOfAnotherRankAreLibTorchsToRefuse) {
  const auto x1 = values({8, 16, 640}).to(GetParam()), k1 = values({32, 16, 5}).to(GetParam()),
             x2 = values({4, 16, 20, 20}).to(GetParam()),
             k2 = values({16, 16, 3, 3}).to(GetParam());
  const std::vector<c10::SymInt> one{1}, none{0};
  const std::tuple<int64_t, at::Tensor, at::Tensor> cases[] = {
      {2, x1, k1}, {3, x1, k1}, {1, x2, k2}, {3, x2, k2}, {1, x1, k2}, {2, x2, k1}};
  for (const auto& [rank, x, k] : cases) {
    SCOPED_TRACE(testing::Message() << rank << " " << x.sizes() << " " << k.sizes());
    EXPECT_FALSE(products::conv(rank, x, k, {}, one, none, one, 1));
    EXPECT_FALSE(products::conv_padded(rank, x, k, {}, one, "same", one, 1));
    EXPECT_FALSE(products::conv_transpose(rank, x, k, {}, one, none, none, 1, one));
  }
  EXPECT_TRUE(products::conv(1, x1, k1, {}, one, none, one, 1));
  EXPECT_TRUE(products::conv(2, x2, k2, {}, one, none, one, 1));
}

// A pointwise convolution is a matrix product, which knows neither groups nor dilation.
TEST_P(Products, PointwiseConvolutionsRefuseWhatLibTorchRefuses) {
  const auto x = values({1, 32, 96, 96}).to(GetParam()).contiguous(at::MemoryFormat::ChannelsLast),
             w = values({64, 32, 1, 1}).to(GetParam());
  const std::vector<c10::SymInt> one{1}, none{0};
  EXPECT_THROW(products::conv(2, x, w, {}, one, none, one, 2), c10::Error);
  EXPECT_THROW(products::conv(2, x, w, {}, one, none, one, 0), c10::Error);
  EXPECT_THROW(products::conv(2, x, w, {}, one, none, none, 1), c10::Error);
}

// Else a step would first copy each weight's gradient into the weight's order.
TEST_P(Products, GradientsHaveTheOrderOfWhatTheyAreOf) {
  const auto low = [&](const at::Tensor& t) { return t.to(GetParam()).requires_grad_(); };
  const auto x = low(values({32, 40})), w = low(values({50, 40})),
             columns = low(values({40, 32})).t(), batch = low(values({3, 50, 40}));
  const auto g = torch::autograd::grad({products::linear(x, w, std::nullopt)->sum()}, {x, w});
  EXPECT_TRUE(g[0].is_contiguous());
  EXPECT_TRUE(g[1].is_contiguous());
  const auto of_columns =
      torch::autograd::grad({products::linear(columns, w, std::nullopt)->sum()}, {columns});
  EXPECT_EQ(of_columns[0].strides(), columns.strides());
  const auto of_batch =
      torch::autograd::grad({products::bmm(batch.detach(), batch.transpose(1, 2))->sum()}, {batch});
  EXPECT_TRUE(of_batch[0].is_contiguous());
}

TEST_P(Products, AnyArgumentAloneMayWantAGradient) {
  const std::vector<c10::SymInt> one{1};
  const Op products_of[] = {
      [](const Tensors& t) { return products::linear(t[0], t[1], t[2]).value(); },
      [&](const Tensors& t) {
        return products::conv(2, t[0], t[1], t[2], one, one, one, 1).value();
      }};
  const std::vector<std::vector<int64_t>> sizes[] = {{{32, 40}, {50, 40}, {50}},
                                                     {{4, 16, 20, 20}, {32, 16, 3, 3}, {32}}};
  for (int op = 0; op < 2; ++op) {
    Tensors all;
    for (const auto& shape : sizes[op]) all.push_back(values(shape).to(GetParam()));
    const Tensors together = leaves_of(all, GetParam());
    products_of[op](together).sum().backward();
    for (std::size_t i = 0; i < 3; ++i) {
      Tensors t = all;
      t[i] = t[i].detach().clone().requires_grad_();
      products_of[op](t).sum().backward();
      EXPECT_TRUE(torch::equal(t[i].grad(), together[i].grad())) << op << " " << i;
    }
  }
}

TEST_P(Products, AWriteToASavedInputIsNoticed) {
  const auto x = values({32, 40}).to(GetParam()),
             w = values({50, 40}).to(GetParam()).requires_grad_();
  const auto y = products::linear(x, w, std::nullopt).value();
  x.zero_();
  EXPECT_THROW(y.sum().backward(), c10::Error);
}

TEST_P(Products, WhatIsNotOrdinaryIsLibTorchs) {
  const auto a = values({32, 40}).to(GetParam()), b = values({40, 50}).to(GetParam());
  ASSERT_TRUE(products::mm(a, b));
  EXPECT_FALSE(products::mm(a, b.t()));                               // does not fit
  EXPECT_FALSE(products::mm(a, b.to(at::kFloat)));                    // two dtypes
  EXPECT_FALSE(products::mm(a.to(at::kFloat), b.to(at::kFloat)));     // FP32
  EXPECT_FALSE(products::mm(a.narrow(0, 0, 4), b.narrow(1, 0, 40)));  // too small to win
  EXPECT_FALSE(products::mm(values({3, 100}).to(GetParam()), values({100, 100}).to(GetParam())));
  EXPECT_FALSE(products::mm(a.narrow(1, 0, 0), b.narrow(0, 0, 0)));  // empty
  EXPECT_FALSE(products::mm(at::_neg_view(a), b));                   // a lazy sign
  EXPECT_FALSE(products::addmm(b, a, b, 1, 1));                      // an addend that does not fit
  EXPECT_FALSE(products::matmul(a, b.select(1, 0)));                 // a vector
  EXPECT_FALSE(products::mm(a, b.to_sparse()));
  setenv("DEMI_KERNELS", "aten", 1);
  EXPECT_FALSE(products::mm(a, b));
  unsetenv("DEMI_KERNELS");

  const auto level = torch::autograd::ForwardADLevel::get_next_idx();
  {
    const auto dual = at::_make_dual(a, torch::ones_like(a), static_cast<std::int64_t>(level));
    EXPECT_FALSE(products::mm(dual, b));
  }
  torch::autograd::ForwardADLevel::release_idx(level);
}

TEST(ProductsInFp16, OverflowIsInfinity) {
  if (!slow_in(at::kHalf)) GTEST_SKIP() << "this processor multiplies fp16 itself";
  const auto a = torch::full({16, 64}, 200, at::kHalf), b = torch::full({64, 16}, 200, at::kHalf);
  EXPECT_TRUE(products::mm(a, b)->eq(INFINITY).all().item<bool>());
}

TEST(SlowDtypes, AreOnlyOf16Bits) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kInt, at::kLong})
    EXPECT_FALSE(slow_in(dtype)) << dtype;
}

}  // namespace
}  // namespace demi::products
