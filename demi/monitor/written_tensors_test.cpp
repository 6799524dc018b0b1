// What-if of ops that write to their arguments, and of ops inside of other ops.
#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <string>

#include "demi/monitor/range_trace.h"
#include "demi/monitor/what_if.h"
#include "demi/monitor/what_if_testing.h"

namespace demi::monitor {
namespace {

using namespace what_if_testing;
using ::testing::Contains;
using ::testing::Not;

constexpr double kLarge = 0x1p17;  // beyond fp16

bool has_op(const WhatIfResult& result, const std::string& op) {
  for (const TensorFate& fate : result.tensors)
    if (fate.op == op) return true;
  return false;
}

// On a CPU a mean is a sum, written to the mean's memory, which is divided there. The region sees
// the mean.
TEST(WrittenTensors, WhatAnOpWritesToItsOwnMemoryIsAPartOfIt) {
  Plain model = handing_on([](const at::Tensor& y) { return y + y.mean({1}, true) * 0; });
  const WhatIfResult result = ask(model, rows_of(filled(4)));
  const TensorFate* mean = find(result, "big", "mean.dim", TensorPlace::output);
  ASSERT_TRUE(mean);
  EXPECT_EQ(mean->loss.elements, 4);
  EXPECT_EQ(mean->loss.greatest, 4) << "the sum is 32";
  EXPECT_EQ(mean->loss.least_exponent, 2);
  for (const char* inner : {"sum.IntList_out", "sum.dim_IntList", "div_.Scalar", "div_.Tensor"})
    EXPECT_FALSE(has_op(result, inner)) << inner;
}

TEST(WrittenTensors, AnOpThatWritesToATensorOfTheUsersIsCounted) {
  Plain model = handing_on([](const at::Tensor& y) {
    at::Tensor out = at::empty_like(y, y.options().requires_grad(false));
    const at::NoGradGuard no_grad;
    at::mul_out(out, y, y);
    return out;
  });
  const WhatIfResult result = ask(model, rows_of(filled(1024)));
  const TensorFate* product = find(result, "big", "mul.out", TensorPlace::output);
  ASSERT_TRUE(product);
  EXPECT_EQ(product->loss.elements, 4 * kFeatures);
  EXPECT_EQ(product->loss.greatest, 1024 * 1024);
  EXPECT_EQ(product->loss.overflowed, 4 * kFeatures);
  // A policy cannot name it, since its result has the dtype of what it writes to.
  EXPECT_THAT(names_of(result.cures), Not(Contains("op mul.out")));
}

// Its memory, which an op inside of it allocates, has numbers once it is handed out.
TEST(WrittenTensors, MemoryThatAnOpHandsOutIsItsResult) {
  Plain model = handing_on([](const at::Tensor& y) { return y + at::ones_like(y); });
  const WhatIfResult result = ask(model, rows_of(filled(4)));
  const TensorFate* ones = find(result, "big", "ones_like", TensorPlace::output);
  ASSERT_TRUE(ones);
  EXPECT_EQ(ones->loss.elements, 4 * kFeatures);
  EXPECT_EQ(ones->loss.greatest, 1);
  EXPECT_FALSE(has_op(result, "fill_.Scalar"));
}

// The product overflows before it is written.
TEST(WrittenTensors, AnOpInsideOfOneThatWritesMayBeNamed) {
  Plain model = handing_on([](const at::Tensor& y) {
    const at::NoGradGuard no_grad;
    at::Tensor out = at::empty_like(y);
    at::tensordot_out(out, y, at::eye(kFeatures) * 1024, {1}, {0});
    return out * 0x1p-20;
  });
  const WhatIfResult result = ask(model, rows_of(filled(1024)));
  const TensorFate* product = find(result, "big", "mm", TensorPlace::output);
  ASSERT_TRUE(product);
  EXPECT_EQ(product->loss.greatest, 1024 * 1024);
  EXPECT_THAT(names_of(result.cures), Contains("op mm"));
}

// multiply_ is mul_ by another name: the one that was called is reported. What is multiplied is
// read before, so that the trace has met it.
TEST(WrittenTensors, ATensorFromOutsideIsWrittenByTheOpThatWasCalled) {
  std::vector<float> memory;
  Plain model = handing_on([&](const at::Tensor&) {
    memory.assign(4 * kFeatures, 1024);
    const at::Tensor outside = at::from_blob(memory.data(), {4, kFeatures}, torch::kFloat);
    EXPECT_EQ(outside.neg().numel(), 4 * kFeatures);
    return outside.multiply_(1024);
  });
  const WhatIfResult result = ask(model, rows_of(filled(1)));
  const TensorFate* input = find(result, "small", "addmm", TensorPlace::input);
  ASSERT_TRUE(input);
  EXPECT_EQ(input->loss.greatest, 1024 * 1024);
  EXPECT_EQ(input->loss.overflowed, 4 * kFeatures);
  EXPECT_EQ(input->from, "multiply_.Scalar in big");
}

// A product casts all of its inputs, those without a dimension too.
TEST(WrittenTensors, AProductCastsAnInputWithoutADimension) {
  const at::Tensor bias = at::full({}, kLarge, torch::kFloat);
  Plain model = handing_on([&](const at::Tensor& y) {
    return y + at::addbmm(bias, y.unsqueeze(0), y.t().unsqueeze(0)).sum() * 0;
  });
  const WhatIfResult result = ask(model, rows_of(filled(1)));
  const TensorFate* input = find(result, "big", "addbmm", TensorPlace::input);
  ASSERT_TRUE(input);
  EXPECT_EQ(input->loss.elements, 1) << "the others are in 16 bits";
  EXPECT_EQ(input->loss.overflowed, 1);
  EXPECT_EQ(input->from, "tensor from outside");
}

// Three times relu of one layer: it is sound, has an overflow from a product, has one from a sum.
TEST(WrittenTensors, OfOneRowTheFirstOverflowIsReported) {
  Plain model = handing_on([](const at::Tensor& y) {
    const at::Tensor sound = y.relu(), product = (sound * kLarge).relu(),
                     sum = (product + product).relu();
    return sound + (product + sum) * 0;
  });
  const WhatIfResult result = ask(model, rows_of(filled(1)));
  const TensorFate* relu = find(result, "big", "relu", TensorPlace::output);
  ASSERT_TRUE(relu);
  EXPECT_EQ(relu->loss.elements, 3 * 4 * kFeatures);
  EXPECT_EQ(relu->loss.overflowed, 2 * 4 * kFeatures);
  EXPECT_EQ(relu->from, "mul.Scalar in big");
}

}  // namespace
}  // namespace demi::monitor
