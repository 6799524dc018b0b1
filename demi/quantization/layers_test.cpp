#include "demi/quantization/layers.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "demi/autocast/autocast.h"
#include "demi/core/error.h"
#include "demi/quantization/hadamard.h"
#include "demi/quantization/native_products.h"
#include "demi/quantization/quantization.h"
#include "demi/weights/weights.h"

namespace demi::quantization {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<QuantizedWeight> weight_in(std::string_view recipe, std::uint64_t seed = 0) {
  const auto run = std::make_shared<RecipeRun>();
  run->seed = seed;
  return std::make_shared<QuantizedWeight>(parse_recipe(recipe), 0,
                                           std::numeric_limits<std::int64_t>::max(), run);
}

/// What the operand's format makes of a matrix, in FP64.
at::Tensor seen_by(const Operand& operand, const at::Tensor& matrix, bool down,
                   const RandomRounding& by_chance = {}) {
  if (!operand.is_quantized) return matrix.to(at::kDouble);
  Options options{operand.format, operand.scaling, down};
  if (operand.by_chance) options.by_chance = by_chance;
  return dequantize(quantize(operand.hadamard ? hadamard(matrix, down) : matrix, options))
      .to(at::kDouble);
}

double relative(const at::Tensor& result, const at::Tensor& truth) {
  return ((result.to(at::kDouble) - truth).norm() / truth.norm()).item<double>();
}

class ByRecipe : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { torch::manual_seed(1); }
};

std::vector<std::string> names_of_recipes() {
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes()) names.emplace_back(recipe.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Recipes, ByRecipe, ::testing::ValuesIn(names_of_recipes()),
                         [](const auto& one) {
                           std::string name = one.param;
                           for (char& c : name)
                             if (c == ':' || c == '-') c = '_';
                           return name;
                         });

// The table of operands, in FP64 from what dequantize() gives, which has tests of its own.
TEST_P(ByRecipe, AllThreeProductsReadTheirOperandsAsTheTableSays) {
  const Recipe& recipe = parse_recipe(GetParam());
  const at::Tensor x = torch::randn({3, 48, 200}).mul_(torch::randn({200}).exp()).requires_grad_(),
                   weight =
                       (torch::randn({144, 200}) * torch::randn({144, 1}).exp()).requires_grad_(),
                   bias = torch::randn({144}).requires_grad_(), dy = torch::randn({3, 48, 144});
  const at::Tensor y = linear(x, weight, bias, weight_in(GetParam(), /*seed=*/9), at::kFloat);
  y.backward(dy);
  const auto chance = [](Product product) {
    return RandomRounding{9, 0, static_cast<std::uint32_t>(product), 0};
  };
  const at::Tensor rows = x.detach().view({-1, 200}), drows = dy.view({-1, 144}),
                   w = weight.detach();
  const at::Tensor expected =
      seen_by(recipe.input, rows, false).mm(seen_by(recipe.weight, w, false).t()) + bias.detach();
  EXPECT_LT(relative(y.detach().view({-1, 144}), expected), 1e-6);
  EXPECT_LT(relative(x.grad().view({-1, 200}),
                     seen_by(recipe.gradient, drows, false, chance(Product::input_gradient))
                         .mm(seen_by(recipe.weight_for_input, w, true))),
            1e-6);
  EXPECT_LT(relative(weight.grad(), seen_by(recipe.gradient_for_weight, drows, true,
                                            chance(Product::weight_gradient))
                                        .t()
                                        .mm(seen_by(recipe.input_for_weight, rows, true))),
            1e-6);
  EXPECT_LT(relative(bias.grad(), drows.sum(0).to(at::kDouble)), 1e-6);
  // In a region: bf16 operands, the same numbers, and results that are rounded once.
  const at::Tensor in_region = linear(x, weight, bias, weight_in(GetParam(), 9), at::kBFloat16);
  EXPECT_LT(relative(in_region.detach().view({-1, 144}), expected), 1.0 / 512);
  x.mutable_grad() = at::Tensor();
  weight.mutable_grad() = at::Tensor();
  in_region.backward(dy.to(at::kBFloat16));
  const at::Tensor rounded = drows.to(at::kBFloat16);
  EXPECT_LT(relative(weight.grad(), seen_by(recipe.gradient_for_weight, rounded, true,
                                            chance(Product::weight_gradient))
                                        .t()
                                        .mm(seen_by(recipe.input_for_weight, rows, true))),
            1e-6);
  // 3 bits of fraction or fewer.
  EXPECT_GT(relative(y.detach().view({-1, 144}),
                     rows.to(at::kDouble).mm(w.to(at::kDouble).t()) + bias.detach()),
            1e-3);
}

// A program may call it in a region, whose autocast would round the products and their sums.
TEST_P(ByRecipe, InARegionProductsAndSumsStayInFp32) {
  const Recipe& recipe = parse_recipe(GetParam());
  const at::Tensor x = torch::randn({48, 200}), weight = torch::randn({144, 200}),
                   bias = torch::randn({144});
  const at::Tensor expected =
      seen_by(recipe.input, x, false).mm(seen_by(recipe.weight, weight, false).t()) + bias;
  const Autocast region(torch::kCPU, torch::kBFloat16);
  const at::Tensor y = linear(x, weight, bias, weight_in(GetParam()), at::kFloat);
  EXPECT_LT(relative(y, expected), 1e-6);
}

TEST_P(ByRecipe, ResultAndGradientsHaveTheDtypesThatTheyBelongTo) {
  const at::Tensor x = torch::randn({4, 32}).to(at::kBFloat16).requires_grad_(),
                   weight = torch::randn({16, 32}).requires_grad_();
  const at::Tensor y = linear(x, weight, std::nullopt, weight_in(GetParam()), at::kHalf);
  EXPECT_EQ(y.scalar_type(), at::kHalf);
  EXPECT_EQ(y.sizes(), (std::vector<std::int64_t>{4, 16}));
  y.sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
}

TEST_P(ByRecipe, AnInfIsNeitherSaturatedNorLost) {
  at::Tensor x = torch::randn({4, 32});
  x[1][3] = std::numeric_limits<float>::infinity();
  const at::Tensor weight = torch::randn({16, 32}).requires_grad_();
  const at::Tensor y = linear(x, weight, std::nullopt, weight_in(GetParam()), at::kFloat);
  EXPECT_TRUE(y[1].isnan().all().item<bool>());
  y.nansum().backward();
  EXPECT_TRUE(weight.grad().isfinite().logical_not().any().item<bool>());
}

TEST_P(ByRecipe, ALayerOfNoRowsAndSizesThatNoBlockDivides) {
  const at::Tensor weight = torch::randn({5, 7}).requires_grad_();
  const auto how = weight_in(GetParam());
  const at::Tensor none = linear(torch::zeros({0, 7}), weight, std::nullopt, how, at::kFloat);
  EXPECT_EQ(none.sizes(), (std::vector<std::int64_t>{0, 5}));
  none.sum().backward();
  EXPECT_EQ(weight.grad().abs().sum().item<float>(), 0);
  const at::Tensor x = torch::randn({3, 7});
  const at::Tensor y = linear(x, weight, std::nullopt, how, at::kFloat);
  EXPECT_LT(relative(y.detach(), x.to(at::kDouble).mm(weight.detach().to(at::kDouble).t())), 0.5);
  y.sum().backward();
}

// Nothing is summed: torch.nn.functional.linear gives the bias.
TEST_P(ByRecipe, ALayerOfNoInputsGivesItsBias) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = torch::zeros({2, 3, 0}).requires_grad_(),
                     weight = torch::zeros({5, 0}).requires_grad_(),
                     bias = torch::arange(5, at::kFloat).requires_grad_();
    const at::Tensor y = linear(x, weight, bias, weight_in(GetParam()), dtype);
    EXPECT_TRUE(y.equal(torch::linear(x, weight, bias).to(dtype)));
    y.sum().backward();
    EXPECT_EQ(x.grad().sizes(), x.sizes());
    EXPECT_EQ(weight.grad().sizes(), weight.sizes());
    EXPECT_TRUE(bias.grad().equal(torch::full({5}, 6.F)));
    EXPECT_EQ(linear(x[0][0], weight, bias, weight_in(GetParam()), dtype).sizes(),
              (std::vector<std::int64_t>{5}));
  }
}

// A step that is told counts; without one each backward pass draws anew.
TEST_P(ByRecipe, RoundingsByChanceFollowTheSeedAndTheStep) {
  const Recipe& recipe = parse_recipe(GetParam());
  const at::Tensor x = torch::randn({64, 96}), dy = torch::randn({64, 32});
  const auto gradient = [&](const auto& how) {
    const at::Tensor weight = torch::ones({32, 96}).requires_grad_();
    linear(x, weight, std::nullopt, how, at::kFloat).backward(dy);
    return weight.grad();
  };
  const auto one = weight_in(GetParam(), 1), other = weight_in(GetParam(), 2);
  const at::Tensor first = gradient(one), second = gradient(one);
  const bool differs = recipe.gradient_for_weight.by_chance;
  EXPECT_EQ(first.equal(second), !differs);
  EXPECT_EQ(first.equal(gradient(other)), !differs);
  EXPECT_TRUE(first.equal(gradient(weight_in(GetParam(), 1))));
  one->run->step = 7;
  one->run->batch = 7;
  const at::Tensor seventh = gradient(one);
  EXPECT_TRUE(seventh.equal(gradient(one))) << "the same step";
  EXPECT_EQ(seventh.equal(first), !differs);
}

TEST_P(ByRecipe, TheSameBitsForAnyNumberOfThreads) {
  const at::Tensor x = torch::randn({200, 96}), dy = torch::randn({200, 64});
  std::vector<at::Tensor> gradients;
  const int before = at::get_num_threads();
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    const at::Tensor weight = torch::ones({64, 96}).requires_grad_();
    linear(x, weight, std::nullopt, weight_in(GetParam(), /*seed=*/5), at::kFloat).backward(dy);
    gradients.push_back(quantize(weight.grad()).codes.view(at::kByte));
  }
  at::set_num_threads(before);
  EXPECT_TRUE(gradients[0].equal(gradients[1]));
}

// Written by an optimizer, a user or through .data(): the next use sees it.
TEST_P(ByRecipe, CodesOfAnOwnedWeightAreKeptUntilTheNextWrite) {
  if (weights::mode() != weights::Mode::keep) GTEST_SKIP() << "copies end with their region";
  const at::Tensor weight = torch::randn({32, 64}).requires_grad_(), x = torch::randn({4, 64});
  const auto how = weight_in(GetParam());
  const auto forward = [&] { return linear(x, weight, std::nullopt, how, at::kFloat).detach(); };
  const auto before = weights::stats();
  const at::Tensor unowned = forward();
  EXPECT_EQ(weights::stats().copies, before.copies);
  const auto input_gradient = [&] {
    const at::Tensor input = x.clone().requires_grad_();
    linear(input, weight, std::nullopt, how, at::kFloat).square().sum().backward();
    return input.grad();
  };
  const at::Tensor gradient = input_gradient();
  weights::own(weight);
  EXPECT_TRUE(forward().equal(unowned));
  EXPECT_EQ(weights::stats().copies, before.copies + 1);
  const std::int64_t kept = weights::stats().bytes - before.bytes;
  const at::Tensor again = input_gradient();
  EXPECT_TRUE(how->recipe->gradient.by_chance || again.equal(gradient))
      << "whose product reads the other direction";
  const Scaling scaling = how->recipe->weight.scaling;
  const bool has_direction = !kernels::is_of_tensor(scaling) && !kernels::is_square(scaling);
  const std::int64_t both = weights::stats().bytes - before.bytes;
  EXPECT_TRUE(has_direction ? both > kept * 3 / 2 : both == kept) << both << " of " << kept;
  weights::drop();
  EXPECT_TRUE(forward().equal(unowned));
  EXPECT_GE(kept, 32 * 64 / 2);
  EXPECT_LE(kept, 32 * 64 * 5 / 4);
  EXPECT_TRUE(forward().equal(unowned));
  EXPECT_EQ(weights::stats().bytes - before.bytes, kept);
  weight.data().mul_(-1);
  EXPECT_TRUE(forward().equal(-unowned)) << "formats are symmetric";
  {
    const at::NoGradGuard no_grad;
    weight.mul_(-1);
  }
  EXPECT_TRUE(forward().equal(unowned));
  weights::set_capacity(before.bytes);
  weights::drop();
  EXPECT_TRUE(forward().equal(unowned));
  EXPECT_EQ(weights::stats().copies, before.copies) << "no room";
  weights::set_capacity();
  weights::disown(weight);
  EXPECT_EQ(weights::stats().bytes, before.bytes);
}

// LibTorch before 2.15 may have none on a CPU with scales of rows.
bool has_native_products_of(const char* recipe) {
  set_native_products(true);
  try {
    linear(torch::ones({16, 16}), torch::ones({16, 16}), {}, weight_in(recipe), at::kFloat);
  } catch (const DeviceError& error) {
    set_native_products(false);
    EXPECT_LT(TORCH_VERSION_MINOR, 15) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("per-tensor scaling"));
    return false;
  }
  set_native_products(false);
  return true;
}

// LibTorch has _scaled_mm on a CPU, too: the layouts, scales and sizes are those of a GPU.
TEST(QuantizedLayers, LibtorchsOwnProductsOfFp8GiveTheSame) {
  // LibTorch asks the processor what it can, and oneDNN may be told to use less of it.
  if (std::getenv("ONEDNN_MAX_CPU_ISA")) GTEST_SKIP() << "ONEDNN_MAX_CPU_ISA is set";
  const struct Emulated {
    ~Emulated() { set_native_products(false); }
  } emulated_again;
  torch::manual_seed(3);
  for (const auto* recipe : {"fp8", "fp8:rowwise"}) {
    if (!has_native_products_of(recipe)) continue;
    for (const std::int64_t in : {48, 40}) {  // 40 is no multiple of 16: emulated
      const at::Tensor x = torch::randn({32, in}).requires_grad_(), dy = torch::randn({32, 64}),
                       bias = torch::randn({64});
      std::vector<at::Tensor> results;
      for (const bool native : {false, true}) {
        set_native_products(native);
        x.mutable_grad() = at::Tensor();
        const at::Tensor weight = torch::arange(64 * in).view({64, in}).sin().requires_grad_();
        const at::Tensor y = linear(x, weight, bias, weight_in(recipe), at::kFloat);
        y.backward(dy);
        for (const at::Tensor& one : {y.detach(), x.grad(), weight.grad()}) results.push_back(one);
      }
      set_native_products(false);
      for (std::size_t i = 0; i < 3; ++i) {
        const double differs = relative(results[i + 3], results[i].to(at::kDouble));
        EXPECT_LT(differs, std::string(recipe) == "fp8" ? 1e-6 : 1.0 / 256) << recipe << in << i;
        EXPECT_TRUE(in != 40 || results[i + 3].equal(results[i])) << recipe << i;
      }
    }
  }
}

TEST(QuantizedLayers, ConvolutionReadsItsOperandsAsTheTableSays) {
  torch::manual_seed(2);
  const at::Tensor x = torch::randn({2, 4, 9, 9}).requires_grad_(),
                   weight = torch::randn({6, 2, 3, 3}).requires_grad_(),
                   bias = torch::randn({6}).requires_grad_();
  const ConvolutionShape shape{.stride = {2, 1},
                               .padding = {1, 1},
                               .dilation = {1, 2},
                               .output_padding = {0, 0},
                               .groups = 2};
  const at::Tensor y = convolution(x, weight, bias, shape, weight_in("fp8"), at::kFloat);
  const at::Tensor dy = torch::randn_like(y);
  y.backward(dy);
  const Recipe& recipe = parse_recipe("fp8");
  const auto seen = [&](const Operand& operand, const at::Tensor& of) {
    return seen_by(operand, of.detach(), false);
  };
  const at::Tensor expected = at::convolution(
      seen(recipe.input, x), seen(recipe.weight, weight), bias.detach().to(at::kDouble),
      shape.stride, shape.padding, shape.dilation, false, shape.output_padding, shape.groups);
  EXPECT_LT(relative(y.detach(), expected), 1e-6);
  const auto [dx, dweight, dbias] = at::convolution_backward(
      seen(recipe.gradient, dy), seen(recipe.input, x), seen(recipe.weight, weight), c10::nullopt,
      shape.stride, shape.padding, shape.dilation, false, shape.output_padding, shape.groups,
      {true, true, false});
  EXPECT_LT(relative(x.grad(), dx), 1e-6);
  EXPECT_LT(relative(weight.grad(), dweight), 1e-6);
  EXPECT_LT(relative(bias.grad(), dy.sum({0, 2, 3}).to(at::kDouble)), 1e-6);
}

template <class Call>
std::string message_of_usage(const Call& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

TEST(QuantizedLayers, RefuseWhatTheyCannotDo) {
  const at::Tensor weight = torch::randn({4, 8}).requires_grad_();
  const auto run = [&](const at::Tensor& x, const at::Tensor& w, std::string_view recipe) {
    return linear(x, w, std::nullopt, weight_in(recipe), at::kFloat);
  };
  EXPECT_THAT(message_of_usage([&] {
                run(torch::randn({2, 7}), weight, "mxfp8");
              }),
              HasSubstr("x (..., in), weight (out, in)"));
  EXPECT_THAT(message_of_usage([&] {
                run(torch::randn({2, 8}).to(at::kDouble), weight, "fp8");
              }),
              HasSubstr("fp32, bf16, fp16"));
  EXPECT_THAT(message_of_usage([&] { parse_recipe("mxfp9"); }), HasSubstr("did you mean mxfp8?"));
  const at::Tensor x = torch::randn({2, 8}).requires_grad_();
  const at::Tensor y = run(x, weight, "mxfp8").sum();
  EXPECT_THAT(message_of_usage([&] {
                torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
              }),
              HasSubstr("have no derivative"));
  const ConvolutionShape shape{
      .stride = {1, 1}, .padding = {0, 0}, .dilation = {1, 1}, .output_padding = {0, 0}};
  EXPECT_THAT(message_of_usage([&] {
                convolution(torch::randn({1, 2, 5, 5}), torch::randn({3, 2, 3, 3}), std::nullopt,
                            shape, weight_in("mxfp8"), at::kFloat);
              }),
              HasSubstr("no form for convolutions"));
  // LibTorch refuses these biases, which would broadcast, too.
  const auto convolved = [](const at::Tensor& w, const at::Tensor& bias,
                            const ConvolutionShape& of) {
    return [=] {
      convolution(torch::randn({1, 2, 5, 5}), w, bias, of, weight_in("fp8"), at::kFloat);
    };
  };
  const at::Tensor kernels = torch::randn({4, 2, 3, 3}), turned = torch::randn({2, 4, 3, 3});
  ConvolutionShape transposed = shape;
  transposed.transposed = true;
  for (const at::Tensor& bias : {torch::ones({1}), torch::ones({1, 4}), torch::ones({2})}) {
    EXPECT_THAT(message_of_usage(convolved(kernels, bias, shape)), HasSubstr("bias (out)"));
    EXPECT_THAT(message_of_usage(convolved(turned, bias, transposed)), HasSubstr("bias (out)"));
  }
  EXPECT_EQ(message_of_usage(convolved(kernels, torch::ones({4}), shape)), "no UsageError");
  EXPECT_EQ(message_of_usage(convolved(turned, torch::ones({4}), transposed)), "no UsageError");
  ConvolutionShape one_stride = shape;
  one_stride.stride = {1};
  EXPECT_THAT(message_of_usage(convolved(kernels, torch::ones({4}), one_stride)),
              HasSubstr("stride [1]"));
}

}  // namespace
}  // namespace demi::quantization
