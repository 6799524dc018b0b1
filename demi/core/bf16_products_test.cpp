#include "demi/core/bf16_products.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "demi/core/error.h"

namespace demi {
namespace {

using ::testing::HasSubstr;

constexpr InstructionSet kAvx2{.avx2 = true}, kAvx512{.avx2 = true, .avx512 = true},
    kBf16{.avx2 = true, .avx512 = true, .avx512_bf16 = true},
    kBf16AndFp16{.avx2 = true, .avx512 = true, .avx512_bf16 = true, .avx512_fp16 = true},
    kAmx{.avx2 = true, .avx512 = true, .avx512_bf16 = true, .avx512_fp16 = true, .amx_bf16 = true};

Bf16Choice choice_of(const char* vendor, int family, int model, const InstructionSet& has) {
  return bf16_choice_of({vendor, family, model, has}, has);
}

TEST(Bf16Products, FollowTheTableOfProcessors) {
  const struct {
    const char* vendor;
    int family, model;
    InstructionSet has;
    Bf16Products products;
  } rows[] = {
      {"GenuineIntel", 6, 207, kBf16AndFp16, Bf16Products::fp32},  // a guest without AMX
      {"GenuineIntel", 6, 207, kAmx, Bf16Products::bf16},
      {"GenuineIntel", 6, 143, kBf16AndFp16, Bf16Products::fp32},
      {"GenuineIntel", 6, 143, kAmx, Bf16Products::bf16},
      {"AuthenticAMD", 25, 17, kBf16, Bf16Products::bf16},   // Zen 4
      {"AuthenticAMD", 25, 33, kAvx2, Bf16Products::fp32},   // Zen 3
      {"AuthenticAMD", 26, 2, kBf16, Bf16Products::bf16},    // Zen 5
      {"AuthenticAMD", 23, 49, kAvx2, Bf16Products::fp32},   // Zen 2
      {"GenuineIntel", 6, 85, kBf16, Bf16Products::bf16},    // Cooper Lake is not in the table
      {"GenuineIntel", 6, 85, kAvx512, Bf16Products::fp32},  // Skylake
      {"AuthenticAMD", 6, 207, kBf16, Bf16Products::bf16},   // a model is its vendor's
      {"GenuineIntel", 25, 17, kBf16, Bf16Products::bf16},
      {"CentaurHauls", 7, 91, kBf16, Bf16Products::bf16},
      {"CentaurHauls", 7, 91, kAvx2, Bf16Products::fp32},
      {"", 0, 0, {}, Bf16Products::bf16},  // not x86-64
  };
  for (const auto& row : rows)
    EXPECT_EQ(choice_of(row.vendor, row.family, row.model, row.has).products, row.products)
        << row.vendor << " " << row.family << " " << row.model << ", " << describe(row.has);
}

TEST(Bf16Products, AreNotThoseThatOneDNNMayNotUse) {
  const Processor xeon{"GenuineIntel", 6, 207, kAmx}, zen{"AuthenticAMD", 25, 17, kBf16};
  EXPECT_EQ(bf16_choice_of(xeon, limited_to(kAmx, "AVX512_CORE_BF16")).products,
            Bf16Products::fp32);
  const Bf16Choice limited = bf16_choice_of(zen, limited_to(kBf16, "AVX512_CORE_VNNI"));
  EXPECT_EQ(limited.products, Bf16Products::fp32);
  EXPECT_THAT(limited.because, HasSubstr("ONEDNN_MAX_CPU_ISA leaves out"));
}

TEST(Bf16Products, SayWhatDecided) {
  EXPECT_THAT(choice_of("GenuineIntel", 6, 207, kBf16AndFp16).because,
              HasSubstr("GenuineIntel family 6 model 207: measured at 0.6"));
  EXPECT_THAT(choice_of("GenuineIntel", 6, 143, kBf16AndFp16).because,
              HasSubstr("the core of model 207"));
  EXPECT_THAT(choice_of("GenuineIntel", 6, 85, kBf16).because, HasSubstr("is not in the table"));
  EXPECT_THAT(choice_of("GenuineIntel", 6, 85, kAvx512).because,
              HasSubstr("the processor has no BF16 instructions"));
}

TEST(Bf16Products, HereFollowTheEnvironmentThenTheTable) {
  const char* forced = std::getenv("DEMI_BF16_PRODUCTS");
  const Bf16Products expected =
      forced && *forced
          ? (std::string_view(forced) == "fp32" ? Bf16Products::fp32 : Bf16Products::bf16)
          : bf16_choice_of(processor(), onednn_instruction_set()).products;
  EXPECT_EQ(bf16_products(), expected);
  EXPECT_FALSE(bf16_choice().because.empty());
}

// Read once a process, so each in one of its own.
class ForcedBf16Products : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_P(ForcedBf16Products, AreWhatTheVariableNames) {
  const auto follows = [] {
    setenv("DEMI_BF16_PRODUCTS", GetParam(), 1);
    return name_of(bf16_products()) == GetParam();
  };
  EXPECT_EXIT(std::exit(follows() ? 0 : 1), testing::ExitedWithCode(0), "");
}

INSTANTIATE_TEST_SUITE_P(Each, ForcedBf16Products, testing::Values("bf16", "fp32"));

TEST_P(ForcedBf16Products, ThatNameNothingAreRefused) {
  const auto is_refused = [] {
    setenv("DEMI_BF16_PRODUCTS", (std::string(GetParam()) + "x").c_str(), 1);
    for (int i = 0; i < 2; ++i) try {
        bf16_products();
        return false;
      } catch (const UsageError& error) {
        if (std::string(error.what()).find("accepted: bf16, fp32") == std::string::npos)
          return false;
      }
    return true;
  };
  EXPECT_EXIT(std::exit(is_refused() ? 0 : 1), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace demi
