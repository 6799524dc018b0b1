#include "demi/batch_norm/batch_norm.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "demi/autocast/apply.h"
#include "demi/autocast/autocast.h"
#include "demi/autocast/policy.h"
#include "demi/core/error.h"

namespace demi {
namespace {

using testing::HasSubstr;

/// A layer's tensors, and what it is to do.
struct Layer {
  at::Tensor weight, bias, mean, variance;
  BatchNormRelu options;

  explicit Layer(std::int64_t channels, const BatchNormRelu& o = {})
      : weight(at::rand({channels}) + 0.5),
        bias(at::randn({channels}) * 0.5),
        mean(at::randn({channels}) * 0.1),
        variance(at::rand({channels}) + 0.5),
        options(o) {}

  at::Tensor ours(const at::Tensor& x) const {
    return batch_norm_relu(x, weight, bias, mean, variance, options);
  }
  /// LibTorch's operators, one by one.
  at::Tensor libtorchs(const at::Tensor& x) const {
    const BatchNormRelu& o = options;
    at::Tensor y =
        at::batch_norm(x, weight, bias, mean, variance, o.training, o.momentum, o.eps, false);
    if (o.add.defined()) y = y + o.add;
    if (o.relu) y = at::relu(y);
    return o.pool == MaxPooling{} ? y
                                  : at::max_pool2d(y, o.pool.size, o.pool.stride, o.pool.padding);
  }
};

/// Results of a layer and gradients, in the order: output, those of x, weight, bias, add, and the
/// running statistics.
using All = std::vector<at::Tensor>;

enum class By { ours, libtorch };

/// Of x and of the layer's own tensors in `dtype`, those of a channel in `of_channels`.
All run(By by, const Layer& original, const at::Tensor& x, at::ScalarType dtype,
        at::ScalarType of_channels) {
  Layer layer = original;
  const auto leaf = [](at::Tensor& tensor, at::ScalarType as) {
    if (tensor.defined())
      tensor = tensor.detach().to(as).clone(at::MemoryFormat::Preserve).requires_grad_();
  };
  const auto plain = [&](at::Tensor& tensor) {
    if (tensor.defined()) tensor = tensor.to(of_channels).clone();
  };
  at::Tensor input = x;
  leaf(input, dtype);
  leaf(layer.options.add, dtype);
  leaf(layer.weight, of_channels);
  leaf(layer.bias, of_channels);
  plain(layer.mean);
  plain(layer.variance);
  const at::Tensor y = by == By::ours ? layer.ours(input) : layer.libtorchs(input);
  // A value of each sign, exact in 16 bits, that no pixel shares with its neighbour.
  const at::Tensor above =
      ((at::arange(y.numel(), at::kDouble) * 7).remainder(31) - 15).div(16).view(y.sizes());
  y.backward(above.to(dtype));
  All all{y.detach(), input.grad()};
  for (const at::Tensor* one : {&layer.weight, &layer.bias, &layer.options.add})
    if (one->defined()) all.push_back(one->grad());
  for (const at::Tensor* one : {&layer.mean, &layer.variance})
    if (one->defined()) all.push_back(*one);
  return all;
}

double distance(const at::Tensor& a, const at::Tensor& exact) {
  return (a.to(at::kDouble) - exact).norm().item<double>();
}

/// Everything within twice LibTorch's distance from FP64.
void expect_as_exact_as_libtorch(const Layer& layer, const at::Tensor& x, at::ScalarType dtype) {
  const at::Tensor given = x.to(dtype);
  Layer rounded = layer;
  if (layer.options.add.defined()) rounded.options.add = layer.options.add.to(dtype);
  const All ours = run(By::ours, rounded, given, dtype, at::kFloat);
  const All theirs = run(By::libtorch, rounded, given, dtype, at::kFloat);
  const All exact = run(By::libtorch, rounded, given, at::kDouble, at::kDouble);
  ASSERT_EQ(ours.size(), exact.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_EQ(ours[i].scalar_type(), theirs[i].scalar_type()) << i;
    EXPECT_EQ(ours[i].sizes(), exact[i].sizes()) << i;
    const double norm = exact[i].norm().item<double>();
    EXPECT_LE(distance(ours[i], exact[i]), 2 * distance(theirs[i], exact[i]) + 1e-6 * (norm + 1))
        << i;
  }
  EXPECT_EQ(ours[0].suggest_memory_format(), theirs[0].suggest_memory_format());
}

at::Tensor pictures(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w,
                    at::MemoryFormat format) {
  return (at::randn({n, c, h, w}) * 1.5 + 0.7).contiguous(format);
}

constexpr at::MemoryFormat kFormats[] = {at::MemoryFormat::Contiguous,
                                         at::MemoryFormat::ChannelsLast};
constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
const MaxPooling kTwoByTwo{{2, 2}, {2, 2}, {0, 0}}, kOverlapping{{3, 3}, {2, 2}, {1, 1}},
    kEveryOther{{1, 1}, {2, 2}, {0, 0}};

TEST(BatchNormReluOp, IsThatOfFp64) {
  torch::manual_seed(0);
  for (const auto format : kFormats)
    for (const auto dtype : kDtypes)
      for (const bool training : {true, false})
        for (const bool relu : {true, false})
          for (const MaxPooling& pool : {MaxPooling{}, kTwoByTwo, kOverlapping, kEveryOther}) {
            SCOPED_TRACE(testing::Message() << c10::toString(dtype) << ' ' << format << ' '
                                            << training << relu << pool.size[0]);
            const Layer layer(19, {.training = training, .relu = relu, .pool = pool});
            expect_as_exact_as_libtorch(layer, pictures(5, 19, 9, 8, format), dtype);
          }
}

TEST(BatchNormReluOp, AddsBeforeReLU) {
  torch::manual_seed(1);
  for (const auto format : kFormats)
    for (const auto dtype : kDtypes)
      for (const bool relu : {true, false})
        for (const MaxPooling& pool : {MaxPooling{}, kTwoByTwo, kOverlapping, kEveryOther}) {
          // Of 16 bits, values that are equal once they are rounded, not before, make a window of
          // FP64 choose another place.
          if (dtype != at::kFloat && pool != MaxPooling{}) continue;
          SCOPED_TRACE(testing::Message()
                       << c10::toString(dtype) << ' ' << format << ' ' << relu << pool.size[0]);
          Layer layer(16, {.relu = relu, .pool = pool});
          layer.options.add = pictures(4, 16, 8, 9, format);
          expect_as_exact_as_libtorch(layer, pictures(4, 16, 8, 9, format), dtype);
          // Of another order of memory, and of memory with gaps.
          layer.options.add = pictures(4, 16, 9, 8, format).transpose(2, 3);
          expect_as_exact_as_libtorch(layer, pictures(4, 16, 8, 9, format), dtype);
        }
}

TEST(BatchNormReluOp, WorksWithoutParametersAndRunningStatistics) {
  torch::manual_seed(2);
  Layer layer(8);
  layer.weight = layer.bias = at::Tensor();
  expect_as_exact_as_libtorch(layer, pictures(3, 8, 5, 5, at::MemoryFormat::ChannelsLast),
                              at::kBFloat16);
  layer.mean = layer.variance = at::Tensor();
  expect_as_exact_as_libtorch(layer, pictures(3, 8, 9, 9, at::MemoryFormat::Contiguous),
                              at::kFloat);
}

TEST(BatchNormReluOp, LeavesTheRestToLibTorch) {
  torch::manual_seed(3);
  const Layer layer(6, {.pool = kTwoByTwo});
  const auto same = [&](const Layer& one, const at::Tensor& x) {
    Layer other = one;
    other.mean = one.mean.clone();
    other.variance = one.variance.clone();
    EXPECT_TRUE(one.ours(x).equal(other.libtorchs(x)));
    EXPECT_TRUE(one.mean.equal(other.mean) && one.variance.equal(other.variance));
  };
  const at::Tensor x = pictures(4, 6, 8, 6, at::MemoryFormat::Contiguous);
  Layer fp64 = layer;
  for (at::Tensor* one : {&fp64.weight, &fp64.bias, &fp64.mean, &fp64.variance})
    *one = one->to(at::kDouble);
  same(fp64, x.to(at::kDouble));
  same(layer, x.permute({2, 1, 0, 3}));  // strides of neither layout
  same(layer, x.slice(3, 0, 6, 2));      // gaps
  Layer flat = layer;
  flat.options.pool = {};
  same(flat, at::randn({9, 6}));     // (N, C)
  same(flat, at::randn({9, 6, 5}));  // (N, C, L)
  const at::Tensor large = pictures(4, 6, 12, 11, at::MemoryFormat::Contiguous);
  for (const MaxPooling& pool : {MaxPooling{{16, 16}, {1, 1}, {8, 8}},  // 256 places
                                 MaxPooling{{9, 2}, {1, 1}, {0, 0}},    // longer than 8
                                 MaxPooling{{2, 2}, {1, 9}, {0, 0}}})
    for (const auto format : kFormats) {
      const Layer wide(6, {.training = false, .pool = pool});
      const at::Tensor y = wide.ours(large.contiguous(format));
      EXPECT_TRUE(y.allclose(wide.libtorchs(large), 1e-5, 1e-6)) << pool.size[0] << format;
    }
}

/// The operator as anybody's file may call it: with any numbers for the pooling.
at::Tensor by_dispatcher(const at::Tensor& x, const std::vector<std::int64_t>& pool) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("demi::batch_norm_relu", "");
  const c10::IValue none;
  torch::jit::Stack stack{x, none, none, none, none, none, true, 0.1, 1e-5, true, pool};
  op.callBoxed(stack);
  return stack.at(0).toTensor();
}

TEST(BatchNormReluOp, TakesOrRefusesAnyPoolingOfTheDispatcher) {
  torch::manual_seed(9);
  for (const auto format : kFormats) {
    const at::Tensor x = pictures(8, 16, 32, 32, format), y = by_dispatcher(x, {});
    EXPECT_EQ(y.sizes(), x.sizes());
    EXPECT_TRUE(by_dispatcher(x, {1, 1, 1, 1, 0, 0}).equal(y));
    EXPECT_TRUE(by_dispatcher(x, {1, 1, 2, 2, 0, 0}).equal(at::max_pool2d(y, 1, 2)));
    EXPECT_TRUE(by_dispatcher(x, {1, 1, 1, 3, 0, 0}).equal(at::max_pool2d(y, 1, {1, 3})));
    constexpr std::int64_t kHuge = std::int64_t{1} << 32;
    for (const std::vector<std::int64_t>& pool : {std::vector<std::int64_t>{1, 1, 0, 0, 0, 0},
                                                  {1, 1, 1, 1, 5, 5},
                                                  {1, 1, -1, 2, 0, 0},
                                                  {0, 1, 1, 1, 0, 0},
                                                  {-1, -1, 1, 1, 0, 0},
                                                  {2, 2, 2, 2, -1, 0},
                                                  {40, 40, 1, 1, 0, 0},
                                                  {kHuge, kHuge, 1000, 1000, kHuge / 2, kHuge / 2},
                                                  {2, 2},
                                                  {2, 2, 2, 2, 0, 0, 1, 1}})
      EXPECT_THROW(by_dispatcher(x, pool), std::exception) << at::IntArrayRef(pool) << format;
  }
}

// Which has no kernel for them: its own error, not one of regions.
TEST(BatchNormReluOp, OfMetaTensorsIsLibTorchs) {
  const at::Tensor channels = at::ones({4}, at::kMeta);
  try {
    batch_norm_relu(at::ones({2, 4, 9, 8}, at::kMeta), channels, channels, channels, channels);
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("native_batch_norm"));
  }
}

TEST(BatchNormReluOp, OfNoExamplesIsEmpty) {
  Layer layer(4);
  const at::Tensor before = layer.mean.clone();
  for (const auto format : kFormats) {
    const at::Tensor x = pictures(0, 4, 3, 3, format).requires_grad_();
    const at::Tensor y = layer.ours(x);
    EXPECT_EQ(y.sizes(), x.sizes());
    y.sum().backward();
    EXPECT_EQ(x.grad().sizes(), x.sizes());
  }
}

// The batch is one picture, and one channel.
TEST(BatchNormReluOp, OfOnePictureOfOneChannel) {
  torch::manual_seed(4);
  for (const auto format : kFormats)
    for (const auto& [h, w] : {std::pair{1, 2}, {7, 5}, {1, 1}}) {
      if (h * w == 1) continue;
      expect_as_exact_as_libtorch(Layer(1), pictures(1, 1, h, w, format), at::kFloat);
    }
}

TEST(BatchNormReluOp, HasTheSameBitsWithAnyNumberOfThreads) {
  torch::manual_seed(5);
  const int before = at::get_num_threads();
  for (const auto format : kFormats)
    for (const bool adds : {false, true}) {
      Layer layer(24, {.pool = kTwoByTwo});
      const at::Tensor x = pictures(16, 24, 40, 40, format);
      if (adds) layer.options.add = pictures(16, 24, 40, 40, format);
      std::vector<All> all;
      for (const int threads : {1, 2, 5}) {
        at::set_num_threads(threads);
        all.push_back(run(By::ours, layer, x, at::kBFloat16, at::kFloat));
      }
      for (const All& one : all)
        for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i].equal(all[0][i])) << i;
    }
  at::set_num_threads(before);
}

TEST(BatchNormReluOp, HasGradientsOfGradients) {
  torch::manual_seed(6);
  const auto second = [](const std::function<at::Tensor(const at::Tensor&)>& f, const Layer& layer,
                         const at::Tensor& x) {
    std::vector<at::Tensor> of{x, layer.weight, layer.bias};
    if (layer.options.add.defined()) of.push_back(layer.options.add);
    const at::Tensor y = f(x);
    const auto first = torch::autograd::grad({(y * y).sum()}, of, {}, true, true);
    at::Tensor penalty = at::zeros({}, x.options());
    for (const at::Tensor& one : first) penalty = penalty + (one * one * one).sum();
    return torch::autograd::grad({penalty}, of);
  };
  for (const bool training : {true, false})
    for (const bool adds : {true, false})
      for (const MaxPooling& pool : {MaxPooling{}, kTwoByTwo, kOverlapping, kEveryOther}) {
        const auto layer_of = [&](const Layer& from, at::ScalarType dtype) {
          Layer layer = from;
          for (at::Tensor* one : {&layer.weight, &layer.bias, &layer.options.add})
            if (one->defined()) *one = one->detach().to(dtype).requires_grad_();
          for (at::Tensor* one : {&layer.mean, &layer.variance}) *one = one->to(dtype).clone();
          return layer;
        };
        Layer layer(5, {.training = training, .pool = pool});
        const at::Tensor x = pictures(3, 5, 4, 4, at::MemoryFormat::ChannelsLast);
        if (adds) layer.options.add = pictures(3, 5, 4, 4, at::MemoryFormat::ChannelsLast);
        const Layer ours = layer_of(layer, at::kFloat), exact = layer_of(layer, at::kDouble);
        const auto seen = second([&](const at::Tensor& t) { return ours.ours(t); }, ours,
                                 x.clone().requires_grad_());
        const auto expected = second([&](const at::Tensor& t) { return exact.libtorchs(t); }, exact,
                                     x.to(at::kDouble).requires_grad_());
        for (std::size_t i = 0; i < seen.size(); ++i)
          EXPECT_LE(distance(seen[i], expected[i]), 1e-4 * expected[i].norm().item<double>() + 1e-4)
              << i << ' ' << training << adds << pool.size[0];
      }
}

// Kernels may be switched off after forward.
TEST(BatchNormReluOp, HasItsGradientsWithoutKernels) {
  torch::manual_seed(8);
  const char* const before = std::getenv("DEMI_KERNELS");
  const std::string kept = before ? before : "";
  for (const auto format : kFormats)
    for (const bool adds : {false, true})
      for (const MaxPooling& pool : {MaxPooling{}, kTwoByTwo, kOverlapping, kEveryOther}) {
        Layer layer(6, {.pool = pool});
        const at::Tensor x = pictures(2, 6, 8, 8, format), add = pictures(2, 6, 8, 8, format);
        std::vector<at::Tensor> gradients[2];
        for (const bool off : {false, true}) {
          const at::Tensor leaf = x.clone().requires_grad_();
          if (adds) layer.options.add = add.clone().requires_grad_();
          const at::Tensor y = layer.ours(leaf);
          if (off) setenv("DEMI_KERNELS", "aten", 1);
          (y * y).sum().backward();
          before ? setenv("DEMI_KERNELS", kept.c_str(), 1) : unsetenv("DEMI_KERNELS");
          gradients[off].push_back(leaf.grad());
          if (adds) gradients[off].push_back(layer.options.add.grad());
        }
        for (std::size_t i = 0; i < gradients[0].size(); ++i)
          EXPECT_TRUE(gradients[0][i].allclose(gradients[1][i], 1e-4, 1e-5))
              << i << pool.size[0] << format;
      }
}

TEST(BatchNormReluOp, PassesNaNAndInfinityAsLibTorch) {
  torch::manual_seed(7);
  for (const auto format : kFormats)
    for (const bool training : {true, false})
      for (const double odd :
           {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
        for (const MaxPooling& pool : {MaxPooling{}, kTwoByTwo}) {
          const Layer layer(6, {.training = training, .pool = pool});
          const at::Tensor x = pictures(2, 6, 9, 9, format);
          x[1][2][1][3] = odd;
          x[0][4][0][0] = odd;  // what the others' differences are taken from
          const All ours = run(By::ours, layer, x, at::kFloat, at::kFloat);
          const All theirs = run(By::libtorch, layer, x, at::kFloat, at::kFloat);
          for (std::size_t i = 0; i < ours.size(); ++i)
            EXPECT_TRUE(ours[i].isfinite().equal(theirs[i].isfinite()))
                << i << ' ' << odd << ' ' << training << pool.size[0] << format;
        }
}

TEST(BatchNormReluOp, FollowsAPolicyThatNamesWhatItComputes) {
  const at::Tensor x =
      at::randn({2, 4, 4, 4}).to(at::kBFloat16).contiguous(at::MemoryFormat::ChannelsLast);
  for (const std::string op : {"batch_norm", "relu", "max_pool2d"}) {
    OpPolicy policy;
    policy.set(op, OpCategory::fp32);
    const Autocast region(torch::kCPU, {.dtype = torch::kBFloat16, .policy = policy});
    EXPECT_EQ(Layer(4, {.pool = kTwoByTwo}).ours(x).scalar_type(), at::kFloat) << op;
  }
  const Autocast region(torch::kCPU, torch::kBFloat16);
  EXPECT_EQ(Layer(4).ours(x).scalar_type(), at::kBFloat16);
}

TEST(BatchNormReluOp, FollowsThePolicyOfAPart) {
  torch::nn::BatchNorm2d norm(4);
  demi::apply(Policy("float32"), *norm);
  const Autocast region(torch::kCPU, torch::kBFloat16);
  const at::Tensor x = at::randn({2, 4, 4, 4}).to(at::kBFloat16);
  EXPECT_EQ(batch_norm_relu(x, norm->weight, norm->bias, norm->running_mean, norm->running_var)
                .scalar_type(),
            at::kFloat);
}

TEST(BatchNormReluOp, SaysThatItWritesRunningStatistics) {
  const Layer layer(4);
  const auto before = layer.mean._version();
  const at::Tensor x = pictures(2, 4, 4, 4, at::MemoryFormat::ChannelsLast);
  layer.ours(x);
  EXPECT_GT(layer.mean._version(), before);
  EXPECT_GT(layer.variance._version(), before);
  const auto schema =
      c10::Dispatcher::singleton().findSchemaOrThrow("demi::batch_norm_relu", "").schema();
  EXPECT_TRUE(schema.is_mutable("running_mean") && schema.is_mutable("running_var"));
  Layer given(4, {.training = false});
  const at::Tensor kept = given.mean.clone();
  given.ours(x);
  EXPECT_TRUE(given.mean.equal(kept));
}

TEST(BatchNormReluOp, RefusesBackwardOfAnInputThatWasOverwritten) {
  const Layer layer(4);
  const at::Tensor leaf = at::randn({2, 4, 9, 9}).requires_grad_(), x = leaf * 2;
  const at::Tensor y = layer.ours(x);
  x.mul_(2);
  EXPECT_THROW(y.sum().backward(), c10::Error);
}

TEST(BatchNormReluOp, RefusesOneValueAChannelAndMissingStatistics) {
  const auto message = [](const std::function<void()>& act) -> std::string {
    try {
      act();
    } catch (const UsageError& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(message([] {
                Layer(4).ours(at::randn({1, 4, 1, 1}));
              }),
              HasSubstr("an input of shape (1, 4, 1, 1)"));
  Layer(4, {.training = false}).ours(at::randn({1, 4, 1, 1}));
  EXPECT_THAT(message([] {
                batch_norm_relu(at::randn({2, 4, 1, 1}), {}, {}, {}, {}, {.training = false});
              }),
              HasSubstr("running_mean and running_var"));
  EXPECT_THROW(Layer(4, {.pool = {{2, 2}, {2, 2}, {2, 2}}}).ours(at::randn({2, 4, 4, 4})),
               c10::Error);
  EXPECT_THROW(Layer(5).ours(at::randn({2, 4, 4, 4})), c10::Error);
}

TEST(BatchNormReluOp, IsLibTorchsWhereKernelsAreOff) {
  const char* const before = std::getenv("DEMI_KERNELS");
  const std::string kept = before ? before : "";
  const at::Tensor x = at::randn({8, 16, 12, 12});
  const Layer layer(16, {.training = false});
  setenv("DEMI_KERNELS", "aten", 1);
  EXPECT_TRUE(layer.ours(x).equal(layer.libtorchs(x)));
  before ? setenv("DEMI_KERNELS", kept.c_str(), 1) : unsetenv("DEMI_KERNELS");
  if (kept != "aten") {
    EXPECT_FALSE(layer.ours(x).equal(layer.libtorchs(x))) << "the same bits: was it demi's?";
  }
}

}  // namespace
}  // namespace demi
