#include "lab/generate/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "demi/core/error.h"

namespace demi::generate {
namespace {

using ::testing::ElementsAre;

// Logits whose exponentials are 1, 2, 4, 8 in another order.
const std::vector<float> kLogits{std::log(4.0F), 0.0F, std::log(8.0F), std::log(2.0F)};

void expect_shares(const Sampling& sampling, const std::vector<double>& weights) {
  const std::vector<double> got = probabilities(kLogits, sampling);
  double sum = 0;
  for (const double weight : weights) sum += weight;
  ASSERT_EQ(got.size(), weights.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], weights[i] / sum, 1e-6) << i;
}

TEST(Sampling, HasTheFormulasProbabilities) {
  expect_shares({.temperature = 1}, {4, 1, 8, 2});
  expect_shares({.temperature = 0.5}, {16, 1, 64, 4});
  expect_shares({.temperature = 1, .top_k = 2}, {4, 0, 8, 0});
  expect_shares({.temperature = 1, .top_k = 1}, {0, 0, 1, 0});
  expect_shares({.temperature = 1, .top_k = 4}, {4, 1, 8, 2});
  expect_shares({.temperature = 0}, {0, 0, 1, 0});
  expect_shares({.temperature = 1e-300}, {0, 0, 1, 0});
  expect_shares({.temperature = 1e300}, {1, 1, 1, 1});
}

TEST(Sampling, OfEqualLogitsTheLowerTokensComeFirst) {
  const std::vector<float> equal{1, 3, 3, 3, -1e30F};
  EXPECT_THAT(probabilities(equal, {.temperature = 1, .top_k = 2}), ElementsAre(0, 0.5, 0.5, 0, 0));
  EXPECT_EQ(draw(equal, {.temperature = 0}, 0, 0), 1);
}

// Pearson's statistic of counts against the formula's, with 3 degrees of freedom: above 16.27 by
// chance once in 1,000. Over positions, texts and seeds.
TEST(Sampling, DrawsByTheProbabilities) {
  constexpr int kDraws = 20'000;
  const std::vector<double> shares{4.0 / 15, 1.0 / 15, 8.0 / 15, 2.0 / 15};
  for (const int along : {0, 1, 2}) {
    std::vector<int> counts(4);
    for (int i = 0; i < kDraws; ++i) {
      const Sampling sampling{.temperature = 1, .seed = along == 2 ? uint64_t(i) : 5};
      const int32_t token = draw(kLogits, sampling, along == 1 ? i : 0, along == 0 ? i : 3);
      ++counts.at(static_cast<std::size_t>(token));
    }
    double statistic = 0;
    for (std::size_t i = 0; i < 4; ++i)
      statistic += std::pow(counts[i] - kDraws * shares[i], 2) / (kDraws * shares[i]);
    EXPECT_LT(statistic, 16.27) << along;
  }
}

// Philox4x32-10 of the seed, the text and the position, written out in Python with whole numbers:
// 10 tokens of equal probability are the first digit of the number.
TEST(Sampling, IsTheSameOnEveryMachine) {
  const std::vector<float> equal(10, 0.0F);
  std::vector<int32_t> drawn;
  for (int64_t position = 0; position < 12; ++position)
    drawn.push_back(draw(equal, {.temperature = 1, .seed = 1337}, 2, position));
  EXPECT_THAT(drawn, ElementsAre(1, 1, 6, 7, 4, 4, 7, 1, 2, 1, 8, 7));
}

TEST(Sampling, NeverDrawsWhatIsLeftOut) {
  for (int64_t i = 0; i < 2000; ++i)
    ASSERT_THAT(draw(kLogits, {.temperature = 5, .top_k = 2}, 0, i), ::testing::AnyOf(0, 2));
}

TEST(Sampling, RefusesWhatDoesNotFit) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(),
                   kInf = std::numeric_limits<double>::infinity();
  for (const double temperature : {-1e-9, kNan, kInf, -kInf})
    EXPECT_THROW(check({.temperature = temperature}), UsageError) << temperature;
  for (const int64_t top_k : {0, -1}) EXPECT_THROW(check({.top_k = top_k}), UsageError);
  check({.temperature = 0, .top_k = std::numeric_limits<int64_t>::max()});
  for (const double bad : {kNan, kInf, -kInf}) {
    std::vector<float> logits = kLogits;
    logits[3] = static_cast<float>(bad);
    EXPECT_THROW(draw(logits, {}, 0, 0), TrainingError) << bad;
    EXPECT_THROW(draw(logits, {.temperature = 0}, 0, 0), TrainingError) << bad;
  }
}

}  // namespace
}  // namespace demi::generate
