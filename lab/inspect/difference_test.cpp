#include "lab/inspect/difference.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <limits>

#include "demi/checkpoint/checkpoint_testing.h"

namespace demi::inspect {
namespace {

using namespace checkpoint;  // NOLINT(google-build-using-namespace)

using testing::ElementsAre;
using Differs = TensorDifference::Kind;

class DifferenceOf : public CheckpointFolder {
 protected:
  Difference of(const NamedTensors& first, const NamedTensors& second) {
    save_safetensors(folder_ / "a", first, first_text_);
    save_safetensors(folder_ / "b", second, second_text_);
    return difference(contents(folder_ / "a"), contents(folder_ / "b"));
  }
  /// Of one tensor that differs.
  TensorDifference one(const at::Tensor& first, const at::Tensor& second) {
    const Difference found = of({{"x", first}}, {{"x", second}});
    EXPECT_EQ(found.tensors.size(), 1U);
    return found.tensors.at(0);
  }

  Metadata first_text_, second_text_;
};

TEST_F(DifferenceOf, EqualFilesHaveNone) {
  const at::Tensor x = at::randn({7, 5});
  const Difference found =
      of({{"x", x}, {"n", at::full({3}, NAN)}}, {{"n", at::full({3}, NAN)}, {"x", x.clone()}});
  EXPECT_EQ(found.compared, 2);
  EXPECT_TRUE(found.tensors.empty());
  EXPECT_TRUE(found.text.empty());
}

TEST_F(DifferenceOf, ValuesAreCountedAndMeasured) {
  for (const int64_t n : {int64_t{5}, (int64_t{1} << 20) + 3}) {
    const at::Tensor x = at::zeros({n}), y = at::zeros({n});
    y[0] = 0.25;
    y[n - 1] = -2;
    const TensorDifference found = one(x, y);
    EXPECT_EQ(found.kind, Differs::values);
    EXPECT_EQ(found.elements, n);
    EXPECT_EQ(found.different_elements, 2);
    EXPECT_EQ(found.max_abs_difference, 2);
    EXPECT_EQ(found.non_finite, 0);
  }
}

TEST_F(DifferenceOf, BitsDecide) {
  const TensorDifference zeros = one(at::tensor({0.F, 1.F}), at::tensor({-0.F, 1.F}));
  EXPECT_EQ(zeros.different_elements, 1);
  EXPECT_EQ(zeros.max_abs_difference, 0);
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = INFINITY;
  const TensorDifference odd =
      one(at::tensor({nan, 1.F, inf, 2.F}), at::tensor({1.F, nan, -inf, 2.5F}));
  EXPECT_EQ(odd.different_elements, 4);
  EXPECT_EQ(odd.non_finite, 3);
  EXPECT_EQ(odd.max_abs_difference, 0.5);
}

TEST_F(DifferenceOf, EveryDtypeIsCompared) {
  for (const at::ScalarType dtype :
       {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kFloat8_e4m3fn, at::kFloat8_e5m2,
        at::kLong, at::kInt, at::kShort, at::kChar, at::kByte, at::kUInt16, at::kUInt32,
        at::kUInt64}) {
    const auto make = [&](double last) {
      return at::tensor(std::vector<double>{1, 2, last}, at::kDouble).to(dtype);
    };
    const TensorDifference found = one(make(3), make(5));
    EXPECT_EQ(found.different_elements, 1) << dtype;
    EXPECT_EQ(found.max_abs_difference, 2) << dtype;
  }
  EXPECT_EQ(one(at::zeros({2}, at::kBool), at::ones({2}, at::kBool)).different_elements, 2);
  const TensorDifference complex = one(at::complex(at::tensor({1.F, 2.F}), at::tensor({0.F, 5.F})),
                                       at::complex(at::tensor({1.F, 2.F}), at::tensor({0.F, 1.F})));
  EXPECT_EQ(complex.different_elements, 1);
  EXPECT_EQ(complex.max_abs_difference, 4);
}

TEST_F(DifferenceOf, OtherDtypesAreComparedByValue) {
  const at::Tensor x = at::tensor({1.F, 1.00390625F, NAN});  // 1 + 2^-8 is a tie in bf16, to 1
  const TensorDifference found = one(x, x.to(at::kBFloat16));
  EXPECT_EQ(found.kind, Differs::dtype);
  EXPECT_EQ(found.different_elements, 1);
  EXPECT_EQ(found.max_abs_difference, 0.00390625);
  EXPECT_EQ(found.non_finite, 0) << "NaN on both sides";
  EXPECT_EQ(one(at::ones({3}), at::ones({3}, at::kLong)).different_elements, 0);
  EXPECT_EQ(one(at::ones({3}), at::ones({3}, at::kComplexFloat)).different_elements, 3);
}

TEST_F(DifferenceOf, ShapesAndMissingTensorsAreNamed) {
  const Difference found =
      of({{"a", at::ones({2, 3})}, {"b", at::ones({1})}, {"s", at::ones({1})}},
         {{"a", at::ones({3, 2})}, {"c", at::ones({1})}, {"s", at::ones({1})}});
  EXPECT_EQ(found.compared, 4);
  ASSERT_EQ(found.tensors.size(), 3U);
  EXPECT_EQ(found.tensors[0].kind, Differs::shape);
  EXPECT_EQ(found.tensors[0].different_elements, 0) << "not compared";
  EXPECT_EQ(found.tensors[1].kind, Differs::only_in_first);
  EXPECT_FALSE(found.tensors[1].second);
  EXPECT_EQ(found.tensors[2].kind, Differs::only_in_second);
  EXPECT_EQ(found.tensors[2].name, "c");
}

// A model's weights are no times, whatever their names are.
TEST_F(DifferenceOf, WeightsNamedSecondsCount) {
  first_text_ = {{"max_seconds", "1"}};
  second_text_ = {{"max_seconds", "2"}};
  const at::Tensor weight = at::ones({2});
  const Difference other = of({{"embed_seconds.weight", weight}, {"fc.weight", weight}},
                              {{"embed_seconds.weight", weight + 6}, {"fc.weight", weight}});
  EXPECT_EQ(other.compared, 2);
  ASSERT_EQ(other.tensors.size(), 1U);
  EXPECT_EQ(other.tensors[0].name, "embed_seconds.weight");
  EXPECT_EQ(other.tensors[0].max_abs_difference, 6);
  EXPECT_TRUE(other.times.empty());
  ASSERT_EQ(other.text.size(), 1U);
  EXPECT_EQ(other.text[0].name, "max_seconds");
  const Difference missing =
      of({{"embed_seconds.weight", weight}, {"fc.weight", weight}}, {{"fc.weight", weight}});
  EXPECT_EQ(missing.compared, 2);
  ASSERT_EQ(missing.tensors.size(), 1U);
  EXPECT_EQ(missing.tensors[0].kind, Differs::only_in_first);
}

TEST_F(DifferenceOf, TimesStandApart) {
  const auto checkpoint_of = [&](const char* name, const at::Tensor& seconds) {
    save_safetensors(folder_ / name,
                     {{"history/steps.data_seconds", seconds}, {"loss", at::ones({1})}});
    Contents made = contents(folder_ / name);
    made.is_file = false;
    for (StoredTensor& tensor : made.tensors) tensor.of_model = false;
    return made;
  };
  const Difference found =
      difference(checkpoint_of("a", at::ones({2})), checkpoint_of("b", at::zeros({2})));
  EXPECT_EQ(found.compared, 1);
  EXPECT_TRUE(found.tensors.empty());
  ASSERT_EQ(found.times.size(), 1U);
  for (const char* name :
       {"seconds", "a/seconds", "seconds.b", "wait_seconds", "measured/peak_bytes"})
    EXPECT_TRUE(is_measured(name)) << name;
  for (const char* name :
       {"", "second", "milliseconds", "secondsx", "beseconds.weight", "measured", "unmeasured/x"})
    EXPECT_FALSE(is_measured(name)) << name;
}

TEST(DifferenceOfNumbers, BitsDecideAndMeasurementsDoNotCount) {
  Contents first{.is_file = false}, second{.is_file = false};
  first.numbers = {{"x", {{"same", 1}, {"nan", NAN}, {"zero", 0.0}, {"a", 1}}},
                   {"measured", {{"peak_bytes", 1}}}};
  second.numbers = {{"x", {{"same", 1}, {"nan", NAN}, {"zero", -0.0}, {"b", 1}}},
                    {"measured", {{"peak_bytes", 2}}}};
  std::vector<std::string> names;
  for (const auto& entry : difference(first, second).numbers) names.push_back(entry.name);
  EXPECT_THAT(names, ElementsAre("x/a", "x/b", "x/zero"));
}

TEST_F(DifferenceOf, MetadataAreCompared) {
  first_text_ = {{"same", "1"}, {"a", "1"}, {"b", "1"}};
  second_text_ = {{"same", "1"}, {"a", "2"}, {"c", "3"}};
  const Difference found = of({}, {});
  std::vector<std::string> names;
  for (const auto& entry : found.text) names.push_back(entry.name);
  EXPECT_THAT(names, ElementsAre("a", "b", "c"));
  EXPECT_EQ(found.text[0].first, "1");
  EXPECT_EQ(found.text[0].second, "2");
  EXPECT_FALSE(found.text[1].second);
  EXPECT_FALSE(found.text[2].first);
}

}  // namespace
}  // namespace demi::inspect
