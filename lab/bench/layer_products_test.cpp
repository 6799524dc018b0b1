#include "lab/bench/layer_products.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "demi/core/error.h"
#include "lab/bench/progress_testing.h"

namespace demi::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(LayerProducts, AreComparedWithFp32AndTimedThreeWays) {
  ToldParts told;
  const auto rows =
      bench_layer_products({.only = "linear 32", .rounds = 1, .on_part = told.on_part()});
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_THAT(told.parts(), ElementsAre(rows[0].layer + " in bf16", rows[1].layer + " in fp16"));
  EXPECT_EQ(rows[0].dtype, "bf16");
  EXPECT_EQ(rows[1].dtype, "fp16");
  for (const LayerProductsRow& row : rows) {
    EXPECT_GT(row.fp32_ms, 0);
    EXPECT_GT(row.demi_ms, 0);
    EXPECT_GT(row.libtorch_ms, 0);
    // Of 16 bits: unit roundoff is 2^-8 for bf16 and 2^-11 for fp16.
    EXPECT_GT(row.error, row.dtype == "bf16" ? 0x1p-12 : 0x1p-15) << "it was not in 16 bits";
    EXPECT_DOUBLE_EQ(row.speedup(), row.fp32_ms / row.demi_ms);
  }
}

TEST(LayerProducts, PutTheVariableBack) {
  setenv("DEMI_KERNELS", "reference", 1);
  bench_layer_products({.dtypes = {"bf16"}, .only = "linear 32", .rounds = 1});
  EXPECT_STREQ(std::getenv("DEMI_KERNELS"), "reference");
  unsetenv("DEMI_KERNELS");
  bench_layer_products({.dtypes = {"bf16"}, .only = "linear 32", .rounds = 1});
  EXPECT_EQ(std::getenv("DEMI_KERNELS"), nullptr);
}

TEST(LayerProducts, RefuseWhatIsNotThere) {
  EXPECT_THROW(bench_layer_products({.dtypes = {"fp32"}}), UsageError);
  EXPECT_THROW(bench_layer_products({.rounds = 0}), UsageError);
  try {
    bench_layer_products({.only = "linaer 32 x 64 to 64"});
    ADD_FAILURE() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("linear 32 x 64 to 64?"));
  }
}

}  // namespace
}  // namespace demi::bench
