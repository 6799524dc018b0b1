#include "demi/quantization/quantization.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "demi/core/error.h"

namespace demi::quantization {
namespace {

using ::testing::HasSubstr;

/// The bytes of a tensor of any dtype.
std::string bytes_of_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return "";
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

bool has_same_bytes(const Quantized& a, const Quantized& b) {
  return bytes_of_tensor(a.codes) == bytes_of_tensor(b.codes) &&
         bytes_of_tensor(a.scales) == bytes_of_tensor(b.scales) &&
         bytes_of_tensor(a.tensor_scale) == bytes_of_tensor(b.tensor_scale);
}

const std::vector<Options> kAllOptions = [] {
  std::vector<Options> all;
  for (const bool down : {false, true}) {
    for (const NarrowFormat format : {NarrowFormat::e4m3, NarrowFormat::e5m2, NarrowFormat::e2m1})
      for (const Scaling scaling :
           {Scaling::tensor, Scaling::tensor_power_of_two, Scaling::row, Scaling::row_power_of_two,
            Scaling::mx_ceil, Scaling::mx_floor, Scaling::block_128,
            Scaling::block_128_power_of_two, Scaling::square_128, Scaling::square_128_power_of_two})
        all.push_back({format, scaling, down});
    for (const Scaling scaling : {Scaling::nv, Scaling::nv_torchao, Scaling::nv_square})
      all.push_back({NarrowFormat::e2m1, scaling, down});
  }
  return all;
}();

/// The greatest relative error of a rounding to nearest, of numbers that are not near 0.
double half_a_step(NarrowFormat format) {
  return format == NarrowFormat::e4m3 ? 1.0 / 16 : format == NarrowFormat::e5m2 ? 1.0 / 8 : 1.0 / 4;
}

TEST(Quantization, ShapesAndDtypesAreThoseOfTheHeader) {
  const at::Tensor x = at::randn({6, 7, 70});
  const Quantized along = quantize(x, {NarrowFormat::e4m3, Scaling::mx_ceil});
  EXPECT_EQ(along.codes.sizes(), (std::vector<std::int64_t>{42, 70}));
  EXPECT_EQ(along.codes.scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_EQ(along.scales.sizes(), (std::vector<std::int64_t>{42, 3}));
  EXPECT_EQ(along.scales.scalar_type(), at::ScalarType::Float8_e8m0fnu);
  EXPECT_FALSE(along.tensor_scale.defined());
  const Quantized down = quantize(x, {NarrowFormat::e2m1, Scaling::nv, true});
  EXPECT_EQ(down.codes.sizes(), (std::vector<std::int64_t>{42, 35}));
  EXPECT_EQ(down.codes.scalar_type(), at::ScalarType::Float4_e2m1fn_x2);
  EXPECT_EQ(down.scales.sizes(), (std::vector<std::int64_t>{3, 70}));
  EXPECT_EQ(down.scales.scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_EQ(down.tensor_scale.sizes(), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(quantize(x, {NarrowFormat::e5m2, Scaling::row}).scales.sizes(),
            (std::vector<std::int64_t>{42}));
  EXPECT_EQ(quantize(x, {NarrowFormat::e5m2, Scaling::row, true}).scales.sizes(),
            (std::vector<std::int64_t>{70}));
  EXPECT_EQ(quantize(x, {NarrowFormat::e5m2, Scaling::tensor}).scales.sizes(),
            (std::vector<std::int64_t>{1}));
}

TEST(Quantization, SquareBlocksHaveAScaleForRowsAndColumns) {
  const at::Tensor x = at::randn({5, 30, 70});
  const Quantized nv = quantize(x, {NarrowFormat::e2m1, Scaling::nv_square});
  EXPECT_EQ(nv.scales.sizes(), (std::vector<std::int64_t>{10, 5}));
  EXPECT_EQ(nv.scales.scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_TRUE(nv.tensor_scale.defined());
  const Quantized fp8 = quantize(x, {NarrowFormat::e4m3, Scaling::square_128});
  EXPECT_EQ(fp8.scales.sizes(), (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(fp8.scales.scalar_type(), at::kFloat);
  EXPECT_EQ(quantize(x, {NarrowFormat::e4m3, Scaling::block_128}).scales.sizes(),
            (std::vector<std::int64_t>{150, 1}));
  EXPECT_EQ(quantize(x, {NarrowFormat::e4m3, Scaling::block_128, true}).scales.sizes(),
            (std::vector<std::int64_t>{2, 70}));
}

// One set of codes serves the products that sum over rows and those that sum over columns.
TEST(Quantization, SquareBlocksAreTheSameInBothDirections) {
  const at::Tensor x = at::randn({150, 200});
  for (Options options : kAllOptions) {
    if (!kernels::is_square(options.scaling)) continue;
    const RandomRounding key{.seed = 1, .tensor = 2, .product = 1, .step = 3};
    options.by_chance = key;
    Options other = options;
    other.down = !options.down;
    EXPECT_TRUE(has_same_bytes(quantize(x, options), quantize(x, other)));
  }
}

TEST(Quantization, NumbersComeBackWithinHalfAStep) {
  torch::manual_seed(1);
  // Magnitudes within a factor of 2: no code is subnormal.
  const at::Tensor x = (at::rand({65, 130}) + 1) * (at::randint(0, 2, {65, 130}) * 2 - 1);
  for (const Options& options : kAllOptions) {
    const at::Tensor back = dequantize(quantize(x, options));
    EXPECT_EQ(back.sizes(), x.sizes());
    const double error = ((back - x) / x).abs().max().item<double>();
    // A scale in E4M3 is itself rounded, by 1/16 at most.
    double most = half_a_step(options.format);
    if (kernels::is_nv(options.scaling)) most += 1.0 / 16;
    if (options.scaling == Scaling::mx_floor)
      most = std::max(most, 1.0 / 4);  // 1.75 of 2 is the end
    EXPECT_LE(error, most) << static_cast<int>(options.format) << ' '
                           << static_cast<int>(options.scaling);
  }
}

TEST(Quantization, AnyNumberOfThreadsGivesTheSameBits) {
  torch::manual_seed(2);
  const at::Tensor x = at::randn({700, 333});
  const int before = at::get_num_threads();
  for (Options options : kAllOptions) {
    options.by_chance = RandomRounding{.seed = 3, .tensor = 1, .product = 2, .step = 9};
    at::set_num_threads(1);
    const Quantized one = quantize(x, options);
    const at::Tensor back = dequantize(one, at::kBFloat16);
    at::set_num_threads(4);
    const Quantized four = quantize(x, options);
    EXPECT_TRUE(has_same_bytes(one, four));
    EXPECT_EQ(bytes_of_tensor(back), bytes_of_tensor(dequantize(four, at::kBFloat16)));
  }
  at::set_num_threads(before);
}

// The rows of the one are the columns of the other.
TEST(Quantization, DownIsAlongOfTheTransposed) {
  torch::manual_seed(3);
  const at::Tensor x = at::randn({96, 160});
  for (const Options& options : kAllOptions) {
    if (options.down) continue;
    Options down = options;
    down.down = true;
    const at::Tensor a = dequantize(quantize(x, options));
    const at::Tensor b = dequantize(quantize(x.t(), down));  // not contiguous
    EXPECT_TRUE(at::equal(a, b.t()));
  }
}

TEST(Quantization, TheKeyChoosesTheBits) {
  const at::Tensor x = at::rand({64, 64});
  const auto by = [&](RandomRounding key) {
    return quantize(x, {.scaling = Scaling::mx_ceil, .by_chance = key});
  };
  const RandomRounding key{.seed = 1, .tensor = 2, .product = 1, .step = 3};
  EXPECT_TRUE(has_same_bytes(by(key), by(key)));
  const RandomRounding others[] = {{2, 2, 1, 3}, {1, 3, 1, 3}, {1, 2, 2, 3}, {1, 2, 1, 4}};
  for (const RandomRounding& other : others) EXPECT_FALSE(has_same_bytes(by(key), by(other)));
}

TEST(Quantization, InfAndNanAreNotLost) {
  for (const Options& options : kAllOptions)
    for (const double special : {HUGE_VAL, -HUGE_VAL, std::nan("")})
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        at::Tensor x = at::ones({40, 40}, dtype);
        x[17][23] = special;
        const at::Tensor back = dequantize(quantize(x, options), dtype);
        EXPECT_EQ(back.scalar_type(), dtype);
        EXPECT_TRUE(back[17][23].isnan().item<bool>());
      }
}

TEST(Quantization, EmptyAndOneElement) {
  for (const Options& options : kAllOptions) {
    for (const std::vector<std::int64_t>& sizes :
         std::vector<std::vector<std::int64_t>>{{0}, {0, 5}, {5, 0}, {0, 3, 4}}) {
      const at::Tensor back = dequantize(quantize(at::zeros(sizes), options));
      EXPECT_EQ(back.sizes(), at::IntArrayRef(sizes));
    }
    const at::Tensor one = dequantize(quantize(at::full({1}, 2.0f), options));
    EXPECT_NEAR(one.item<float>(), 2, 2 * (half_a_step(options.format) + 1.0 / 16));
  }
}

TEST(Quantization, ALeafStaysAsItIs) {
  const at::Tensor x = at::randn({8, 64}).requires_grad_();
  const at::Tensor copy = x.detach().clone();
  const Quantized result = quantize(x);
  EXPECT_FALSE(dequantize(result).requires_grad());
  EXPECT_TRUE(at::equal(x, copy));
  const c10::InferenceMode guard;
  EXPECT_TRUE(at::equal(dequantize(quantize(copy)), dequantize(result)));
}

template <class Act>
std::string complaint_of(Act act) {
  try {
    act();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Quantization, WhatCannotBeQuantizedIsSaid) {
  EXPECT_THAT(complaint_of([] { quantize(at::zeros({4}, at::kDouble)); }),
              HasSubstr("seen: fp64; accepted: fp32, bf16, fp16"));
  EXPECT_THAT(complaint_of([] { quantize(at::zeros({4}, at::kLong)); }), HasSubstr("int64"));
  EXPECT_THAT(complaint_of([] { quantize(at::zeros({})); }), HasSubstr("without dimensions"));
  EXPECT_THAT(complaint_of([] {
                quantize(at::zeros({4}), {NarrowFormat::e5m2, Scaling::nv});
              }),
              HasSubstr("seen: e5m2; accepted: e2m1"));
  EXPECT_THAT(complaint_of([] { dequantize(quantize(at::zeros({4})), at::kDouble); }),
              HasSubstr("[quantization.dequantize]"));
  EXPECT_THAT(
      complaint_of([] { quantize(at::zeros({4}), {.by_chance = RandomRounding{.product = 4}}); }),
      HasSubstr("RandomRounding::product is out of range; seen: 4; accepted: 0 to 3"));
}

// Kernels read as the sizes say.
TEST(Quantization, CodesAndScalesOfOtherSizesAreRefused) {
  const Options nv{NarrowFormat::e2m1, Scaling::nv};
  const auto spoiled = [&](const auto& spoil) {
    Quantized made = quantize(at::arange(128, at::kFloat).view({4, 32}), nv);
    spoil(made);
    return complaint_of([&] { dequantize(made); });
  };
  EXPECT_EQ(spoiled([](Quantized&) {}), "");
  EXPECT_THAT(spoiled([](Quantized& q) { q.sizes = {400, 32}; }), HasSubstr("codes are not those"));
  EXPECT_THAT(spoiled([](Quantized& q) { q.sizes = {}; }), HasSubstr("no quantized tensor"));
  EXPECT_THAT(spoiled([](Quantized& q) { q.codes = at::Tensor(); }),
              HasSubstr("an undefined tensor"));
  EXPECT_THAT(spoiled([](Quantized& q) { q.scales = q.scales.narrow(0, 0, 1); }),
              HasSubstr("scales are not those"));
  EXPECT_THAT(spoiled([](Quantized& q) { q.tensor_scale = at::Tensor(); }),
              HasSubstr("tensor_scale"));
  EXPECT_THAT(spoiled([](Quantized& q) { q.format = NarrowFormat::e4m3; }), HasSubstr("codes"));
}

TEST(Quantization, CodesMayBeAnyView) {
  const Quantized made = quantize(at::arange(256, at::kFloat).view({4, 64}));
  Quantized view = made;
  view.codes = made.codes.view(at::kByte).t().contiguous().t().view(at::kFloat8_e4m3fn);
  EXPECT_TRUE(at::equal(dequantize(view), dequantize(made)));
}

}  // namespace
}  // namespace demi::quantization
