// Coded arrays: the random bits, the rounding, and every path against the reference.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "demi/core/number.h"
#include "demi/kernels/codecs/bf16_by_chance.h"
#include "demi/kernels/codecs/companded.h"
#include "demi/kernels/codecs/random_halves.h"
#include "demi/kernels/recode.h"
#include "demi/kernels/testing/every_path.h"
#include "demi/kernels/traffic.h"

namespace demi::kernels {
namespace {

using testing::CaseOptions;
using testing::StepCase;

// Steele et al. 2014; the first outputs of SplitMix64 seeded with 0 and 1, of the published
// splitmix64.c.
TEST(RandomHalves, AreKeyedBySplitMix64) {
  EXPECT_EQ(mixed(0x9E3779B97F4A7C15u), 0xE220A8397B1DCDAFu);
  EXPECT_EQ(mixed(2 * 0x9E3779B97F4A7C15u), 0x6E789E6AA1B965F4u);
  EXPECT_EQ(mixed(1 + 0x9E3779B97F4A7C15u), 0x910A2DEC89025CC1u);
}

// Without keys it is MurmurHash3's fmix32: values of the published MurmurHash3.cpp.
TEST(RandomHalves, AreThoseOfMurmurHash3) {
  EXPECT_EQ(random_word({0, 0}, 0u), 0u);
  EXPECT_EQ(random_word({0, 0}, 1u), 0x514E28B7u);
  EXPECT_EQ(random_word({1, 0}, 0u), 0x514E28B7u);
}

/// Of 256 equally likely pairs of four bits: 255 in the mean, with a deviation of sqrt(2 x 255).
template <class First, class Second>
double chi_square(First first, Second second) {
  constexpr int kCount = 1 << 18;
  std::vector<double> seen(256);
  for (int i = 0; i < kCount; ++i) seen[(first(i) & 15u) * 16 + (second(i) & 15u)] += 1;
  double sum = 0;
  for (const double count : seen) sum += (count - kCount / 256.0) * (count - kCount / 256.0);
  return sum * 256 / kCount;
}

TEST(RandomHalves, AreUniformAndIndependent) {
  const RoundingKey key{.seed = 1, .tensor = 2, .state = 1, .step = 3};
  const auto half = [](const RoundingKey& of) {
    return [stream = stream_of(of)](int i) { return random_half(stream, i); };
  };
  const auto plain = half(key);
  std::vector<double> seen;
  for (const int shift : {0, 4, 8, 12}) {
    const auto bits = [=](int i) { return plain(i) >> shift; };
    seen.push_back(chi_square(bits, [=](int i) { return plain(i) >> (shift + 4) % 16; }));
    for (const int distance : {1, 2, 16, 32, 512})
      seen.push_back(chi_square(bits, [=](int i) { return bits(i + distance); }));
    for (RoundingKey other : std::vector<RoundingKey>(4, key)) {
      const auto k = seen.size() % 4;
      (k == 0 ? other.tensor : k == 1 ? other.state : other.step) += 1;
      if (k == 3) other.seed += 1;
      seen.push_back(chi_square(bits, [=](int i) { return half(other)(i) >> shift; }));
    }
  }
  for (const double one : seen) EXPECT_NEAR(one, 255, 5 * std::sqrt(2 * 255.0));
}

std::uint16_t rounded(float x, std::uint32_t random) {
  return bf16_by_chance(std::bit_cast<std::uint32_t>(x), random);
}

TEST(Bf16ByChance, KeepsWhatBf16Holds) {
  for (std::uint32_t half = 0; half < 65536; ++half) {
    const float x = fp32_from_bf16(static_cast<std::uint16_t>(half));
    for (const std::uint32_t random : {0u, 1u, 0x8000u, 0xFFFFu}) {
      if (std::isnan(x))
        ASSERT_TRUE(std::isnan(fp32_from_bf16(rounded(x, random)))) << half;
      else
        ASSERT_EQ(rounded(x, random), half);
    }
  }
  for (const std::uint32_t payload : {0x7F800001u, 0xFF800001u, 0x7FFFFFFFu, 0xFFFFFFFFu})
    EXPECT_TRUE(std::isnan(fp32_from_bf16(rounded(std::bit_cast<float>(payload), 0xFFFF))));
}

// Of 65,536 equally likely random numbers as many round up as lie below the number.
TEST(Bf16ByChance, RoundsUpAsOftenAsTheRestSays) {
  for (const std::uint32_t rest : {1u, 0x4000u, 0x8000u, 0xFFFFu})
    for (const std::uint32_t high : {0x3F80u, 0xBF80u, 0x0000u, 0x0001u, 0x7F7Fu}) {
      int up = 0;
      for (std::uint32_t random = 0; random < 65536; ++random) {
        const std::uint16_t seen = rounded(std::bit_cast<float>(high << 16 | rest), random);
        ASSERT_TRUE(seen == high || seen == high + 1);
        up += seen != high;
      }
      EXPECT_EQ(up, static_cast<int>(rest)) << high;
    }
}

TEST(Bf16ByChance, OfAWholeArrayIsThatOfItsElements) {
  constexpr int kCount = 77;
  std::vector<float> from(kCount), back(kCount);
  std::vector<std::uint16_t> to(kCount + 1, 0xABCD);
  for (std::size_t i = 0; i < kCount; ++i)
    from[i] = testing::value_at(3, static_cast<std::int64_t>(i), 2, true);
  const RoundingKey key{.seed = 5, .tensor = 1, .state = 0, .step = 2};
  const Coded array{.values = to.data(), .codec = Codec::bf16_by_chance};
  encode_array(array, from.data(), kCount, key);
  decode_array(back.data(), array, kCount);
  EXPECT_EQ(to[kCount], 0xABCD);
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(to[i], rounded(from[i], random_half(stream_of(key), static_cast<std::int64_t>(i))));
    ASSERT_EQ(back[i], fp32_from_bf16(to[i]));
  }
}

/// A group in 8 bits, and what is read of it.
struct Group8 {
  std::vector<std::uint8_t> codes = std::vector<std::uint8_t>(kCodeGroup);
  std::uint16_t scale = 0;
  std::vector<float> seen = std::vector<float>(kCodeGroup);

  Group8(Codec codec, std::vector<float> values) {
    values.resize(kCodeGroup);
    const Coded array{.values = codes.data(), .scales = &scale, .codec = codec};
    encode_array(array, values.data(), kCodeGroup);
    decode_array(seen.data(), array, kCodeGroup);
  }
};

TEST(Companded, AGroupOfZerosStaysZero) {
  for (const Codec codec : {Codec::softsign, Codec::root}) {
    const Group8 group(codec, {0.0f, -0.0f});
    EXPECT_EQ(group.scale, 0);
    for (const float x : group.seen) EXPECT_EQ(x, 0.0f);
  }
}

// The greatest is its scale, which has 8 bits; the others are off by half a code of what the
// formula gives: x = s c / (254 - |c|), and x = (s c / 255)^2.
TEST(Companded, KeepsNumbersToHalfACode) {
  std::vector<float> values(kCodeGroup), squares(kCodeGroup);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = (i % 2 != 0 ? -1.0f : 1.0f) * static_cast<float>(i) / 31.0f;
    squares[i] = values[i] * values[i];
  }
  const Group8 first(Codec::softsign, values), second(Codec::root, squares);
  EXPECT_EQ(first.scale, 0x3F80);
  EXPECT_EQ(second.scale, 0x3F80);
  EXPECT_EQ(first.seen[31], -1.0f);
  EXPECT_EQ(second.seen[31], 1.0f);
  const auto softsign = [](double c) { return c / (254 - c); };
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = std::fabs(values[i]), code = 254 * x / (1 + x);
    EXPECT_EQ(std::signbit(first.seen[i]), std::signbit(values[i]) && i > 0);
    EXPECT_LE(std::fabs(std::fabs(first.seen[i]) - x), softsign(code + 0.5) - x + 1e-6) << i;
    EXPECT_LE(std::fabs(std::sqrt(second.seen[i]) - x), 0.51 / 255) << i;
  }
}

TEST(Companded, OneHugeValueTakesTheOthersDown) {
  const Group8 first(Codec::softsign, {1e30f, 1.0f, -1e28f}),
      second(Codec::root, {1e30f, 1.0f, 1e28f});
  EXPECT_NEAR(first.seen[0], 1e30f, 1e28f);
  EXPECT_EQ(first.seen[1], 0.0f);
  EXPECT_NEAR(first.seen[2], -1e28f, 4e27f);
  EXPECT_NEAR(second.seen[0], 1e30f, 1e28f);
  EXPECT_NEAR(second.seen[2], 1e28f, 1e27f);
  EXPECT_GT(second.seen[1], 0.0f) << "a first moment that is kept is divided by its root";
}

TEST(Companded, TheEndsOfFp32sRange) {
  constexpr float kGreatest = std::numeric_limits<float>::max();
  EXPECT_EQ(Group8(Codec::softsign, {kGreatest, -kGreatest}).seen[1], -0x1p126f) << "cut";
  const float square = Group8(Codec::root, {kGreatest}).seen[0];
  EXPECT_TRUE(std::isfinite(square));
  EXPECT_NEAR(square / kGreatest, 1, 0.01);
  EXPECT_EQ(Group8(Codec::softsign, {0x1p-127f, -0x1p-149f}).seen[0], 0.0f) << "subnormal";
  EXPECT_EQ(Group8(Codec::softsign, {-0x1p-126f}).seen[0], -0x1p-126f);
  EXPECT_GT(Group8(Codec::root, {0x1p-149f}).seen[0], 0.0f);
  EXPECT_NEAR(Group8(Codec::root, {0x1p-126f}).seen[0] * 0x1p126, 1, 0.01);
}

TEST(Companded, AGroupWithInfOrNanIsNan) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const Codec codec : {Codec::softsign, Codec::root})
    for (const float bad : {kInf, -kInf, std::nanf("")}) {
      if (codec == Codec::root && bad < 0) continue;
      for (const float x : Group8(codec, {1.0f, bad}).seen) EXPECT_TRUE(std::isnan(x));
    }
}

TEST(Companded, ASecondMomentIsNeverBelowZero) {
  for (const float x : Group8(Codec::root, {-1.0f, 4.0f, -0.0f}).seen) {
    EXPECT_GE(x, 0.0f);
    EXPECT_FALSE(std::signbit(x));
  }
}

// Each code is what it decodes to, whatever is drawn, as is its scale: a step that changes no
// number changes no code.
TEST(Companded, CodesStayWhatTheyAre) {
  for (const std::uint16_t scale : {0x3F80, 0x0080, 0x5F7F, 0x42C8}) {
    for (const std::uint32_t random : {0u, 1u, 0x8000u, 0xFFFFu}) {
      for (int code = -127; code <= 127; ++code) {
        const float x = from_softsign_code(code, scale_of(scale));
        const std::int32_t seen =
            softsign_code(x, inverse_of_code_scale(scale), fraction_of(random));
        EXPECT_NEAR(seen, code, random == 0 || random == 0xFFFF ? 1 : 0) << scale;
      }
      const float greatest = from_softsign_code(-127, scale_of(scale));
      EXPECT_EQ(group_scale(std::bit_cast<std::uint32_t>(-greatest), kGreatestScale), scale);
    }
  }
}

// bf16's numbers above 1 are 2^-7 apart: 1.001 lies below 0x3F81.
TEST(Companded, TheScaleIsRoundedUp) {
  EXPECT_EQ(group_scale(std::bit_cast<std::uint32_t>(1.0f), kGreatestScale), 0x3F80);
  EXPECT_EQ(group_scale(std::bit_cast<std::uint32_t>(1.001f), kGreatestScale), 0x3F81);
}

// Of 65,536 equally likely random numbers.
TEST(Companded, RoundingKeepsTheMean) {
  for (const float x : {0.001f, 0.02f, 0.3f, 0.7f, 0.999f}) {
    double first = 0, square = 0;
    for (std::uint32_t random = 0; random < 65536; ++random) {
      first += from_softsign_code(softsign_code(-x, 1.0f, fraction_of(random)), 1.0f);
      square += from_root_code(root_code(std::sqrt(x), 1.0f, fraction_of(random)), 1.0f);
    }
    // The softsign bends by less than an eighth of its second difference within a code.
    EXPECT_NEAR(first / 65536, -x, 4e-5) << x;
    EXPECT_NEAR(square / 65536, x, 1e-6) << x;
  }
}

constexpr std::array kBf16{Codec::bf16_by_chance, Codec::bf16_by_chance};
constexpr std::array kInt8{Codec::softsign, Codec::root};

CaseOptions moment_case(UpdateRule rule, const std::array<Codec, 2>& codecs = kBf16) {
  CaseOptions options = testing::coded_case(rule);
  options.codecs = codecs;
  if (testing::begins_with_squares(rule)) std::swap((*options.codecs)[0], (*options.codecs)[1]);
  return options;
}

TEST(CodedArrays, EveryPathAndTheDeviceGiveTheBitsOfTheReference) {
  for (const UpdateRule rule : testing::all_rules())
    for (const auto& codecs : {kBf16, kInt8})
      for (const Storage storage : {Storage::fp32, Storage::fp16, Storage::bf16}) {
        SCOPED_TRACE(::testing::Message()
                     << static_cast<int>(rule) << " " << static_cast<int>(codecs[0]) << " gradient "
                     << static_cast<int>(storage));
        CaseOptions options = moment_case(rule, codecs);
        options.gradient = storage;
        options.copies[1] = storage == Storage::fp32 ? Storage::fp16 : Storage::none;
        options.group.amsgrad = storage != Storage::bf16;
        options.offset = storage == Storage::bf16 ? 0 : 3;
        options.awkward = storage == Storage::fp32;
        testing::expect_same_bits_on_every_path(options, 3);
      }
}

// The state of one element is 1/2 + g after a step of momentum 1/2 with gradient g; rounding to
// nearest would lose a g of 2^-12 in each.
TEST(CodedArrays, SmallChangesCountInTheMean) {
  CaseOptions options = moment_case(UpdateRule::sgd);
  options.gradient = Storage::fp32;
  options.lengths = {40000};
  options.group = {};
  options.group.momentum = 0.5;
  options.scale = 1;
  StepCase one(options);
  TensorEntry& tensor = one.plan().tensors()[0];
  auto* buffer = static_cast<std::uint16_t*>(tensor.coded_moment[0].values);
  for (std::int64_t i = 0; i < tensor.length; ++i) {
    buffer[i] = bf16_from_fp32(1.0f);
    one.set_gradient(0, i, 0.5f + 0x1p-12f);
  }
  *tensor.step = 1;  // the first would make the gradient the buffer
  one.step(*cpu_kernels());
  double sum = 0;
  for (std::int64_t i = 0; i < tensor.length; ++i) sum += fp32_from_bf16(buffer[i]) - 1.0;
  // Up with probability 2^-12 / 2^-7 = 1/32: the mean's deviation is 2^-7 sqrt(31) / 32 / 200.
  EXPECT_NEAR(sum / 40000, 0x1p-12, 5 * 0x1p-7 * std::sqrt(31.0) / 32 / 200);
}

TEST(CodedArrays, ASkippedStepDrawsNothing) {
  StepCase one(moment_case(UpdateRule::adamw)), other(moment_case(UpdateRule::adamw));
  const float found = 1;
  one.step(*cpu_kernels(Path::reference));
  other.plan().inputs().found_inf = &found;
  const auto before = other.written();
  other.step(*cpu_kernels(Path::reference));
  EXPECT_TRUE(other.written() == before);
  other.plan().inputs().found_inf = nullptr;
  other.step(*cpu_kernels(Path::reference));
  EXPECT_TRUE(one.written() == other.written());
}

TEST(CodedArrays, MoveAQuarterOfTheBytesAndTheScales) {
  CaseOptions options = moment_case(UpdateRule::adamw, kInt8);
  options.lengths = {16385};
  StepCase coded(options);
  options.codecs.reset();
  StepCase wide(options);
  EXPECT_EQ(traffic_of(wide.plan().table()).update - traffic_of(coded.plan().table()).update,
            2 * (16385 * 6 - 2 * 2 * 513));
}

TEST(CodedArrays, MoveHalfTheBytes) {
  for (const UpdateRule rule : {UpdateRule::adamw, UpdateRule::lamb}) {
    CaseOptions options = moment_case(rule);
    StepCase coded(options);
    options.codecs.reset();
    StepCase wide(options);
    const Traffic a = traffic_of(wide.plan().table()), b = traffic_of(coded.plan().table());
    EXPECT_EQ(a.update - b.update, 8 * a.elements);
    EXPECT_EQ(a.apply_trust - b.apply_trust, rule == UpdateRule::lamb ? 4 * a.elements : 0);
  }
}

}  // namespace
}  // namespace demi::kernels
