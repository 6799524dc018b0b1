#include "demi/imported/fill_values.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <limits>

#include "demi/autocast/autocast.h"
#include "demi/core/error.h"
#include "demi/imported/fixtures_testing.h"
#include "demi/imported/imported_model.h"

namespace demi::imported {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// filled.pt2 has FP32's limits in its graph. In Python's region they are bfloat16's.
TEST(FillValues, AreTheLimitsOfTheRegionsDtype) {
  const auto truth = tensors_in("filled.safetensors");
  ImportedModel model(fixture("filled.pt2"));
  const Autocast region(torch::kCPU, torch::kBFloat16);
  const auto result = model->call({truth.at("x")});
  const auto& outputs = result.toTupleRef().elements();
  ASSERT_EQ(outputs.size(), 6U);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor expected = truth.at("bf16." + std::to_string(i)), seen = outputs[i].toTensor();
    EXPECT_EQ(seen.scalar_type(), torch::kBFloat16) << i;
    const at::Tensor is_limit = expected.abs() > 1e30;
    EXPECT_TRUE(seen.masked_select(is_limit).equal(expected.masked_select(is_limit))) << i;
    EXPECT_TRUE(torch::allclose(seen.masked_select(~is_limit).to(torch::kFloat),
                                expected.masked_select(~is_limit).to(torch::kFloat), 0.02))
        << i;
  }
}

TEST(FillValues, LeaveInfAndNumbersThatTheDtypeHas) {
  const auto schema = [](const char* name, const char* overload) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).schema();
  };
  const auto filled = [&](const at::Tensor& tensor, const c10::IValue& value) {
    torch::jit::Stack stack{tensor, tensor > 0, value};
    fill_values(schema("aten::masked_fill", "Scalar"))(stack);
    return stack[2];
  };
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const at::Tensor half = torch::ones({2}, torch::kHalf);
  EXPECT_EQ(filled(half, -1e9).toDouble(), -65504.0);
  EXPECT_EQ(filled(half, -1000000).toDouble(), -65504.0);
  EXPECT_EQ(filled(half, -kInf).toDouble(), -kInf);
  EXPECT_EQ(filled(half, 3).toInt(), 3);
  EXPECT_EQ(filled(torch::ones({2}), -1e300).toDouble(),
            -static_cast<double>(std::numeric_limits<float>::max()));
  EXPECT_EQ(filled(torch::ones({2}, torch::kDouble), -1e300).toDouble(), -1e300);
  EXPECT_EQ(filled(torch::ones({2}, torch::kLong), 1 << 30).toInt(), 1 << 30);
  // The dtype that stands in the call counts.
  torch::jit::Stack full{half, -1e9, c10::ScalarType::Float};
  fill_values(schema("aten::full_like", ""))(full);
  EXPECT_EQ(full[1].toDouble(), -1e9);
  EXPECT_TRUE(fill_values(schema("aten::mul", "Scalar")).places.empty());
}

TEST(BakedDtype, IsSaidToBeTheCause) {
  ImportedModel model(fixture("baked.pt2"));
  model->to(torch::kBFloat16);
  EXPECT_THAT(
      [&] {
        model->forward(torch::ones({2, 2}, torch::kBFloat16));
      },
      ThrowsMessage<UsageError>(
          AllOf(HasSubstr("aten::linear in linear"), HasSubstr("Float and BFloat16"),
                HasSubstr("fixed at the export"), HasSubstr("demi::Autocast"))));
}

}  // namespace
}  // namespace demi::imported
