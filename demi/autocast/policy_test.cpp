#include "demi/autocast/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "demi/core/error.h"

namespace demi {
namespace {

// Keras, keras.mixed_precision.DTypePolicy: "mixed_float16: compute float16, variable float32" and
// so on.
TEST(Policy, NamesMeanWhatKerasDefines) {
  EXPECT_EQ(Policy("mixed_float16").compute_dtype(), torch::kHalf);
  EXPECT_EQ(Policy("mixed_float16").variable_dtype(), torch::kFloat);
  EXPECT_EQ(Policy("mixed_bfloat16").compute_dtype(), torch::kBFloat16);
  EXPECT_EQ(Policy("mixed_bfloat16").variable_dtype(), torch::kFloat);
  for (const auto& [name, dtype] : {std::pair{"float64", torch::kDouble},
                                    {"float32", torch::kFloat},
                                    {"float16", torch::kHalf},
                                    {"bfloat16", torch::kBFloat16}}) {
    EXPECT_EQ(Policy(name).name(), name);
    EXPECT_EQ(Policy(name).compute_dtype(), dtype);
    EXPECT_EQ(Policy(name).variable_dtype(), dtype);
    EXPECT_FALSE(Policy(name).is_mixed());
  }
}

TEST(Policy, UnknownNameIsAnsweredWithTheNearest) {
  try {
    Policy("mixed_floatl6");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("did you mean mixed_float16"));
    EXPECT_THAT(error.what(), testing::HasSubstr("bfloat16"));
  }
}

TEST(Policy, GlobalPolicyIsFloat32UntilSet) {
  EXPECT_EQ(global_policy().name(), "float32");
  set_global_policy("mixed_bfloat16");
  EXPECT_EQ(global_policy(), Policy("mixed_bfloat16"));
  set_global_policy(Policy());
}

}  // namespace
}  // namespace demi
