#include "demi/monitor/exponent_histogram.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "demi/core/error.h"
#include "demi/core/flush_subnormals.h"
#include "demi/core/source_dir_testing.h"

namespace demi::monitor {

// Reaches the way of devices other than the CPU.
struct CounterTesting {
  static ExponentHistogram by_ops(const at::Tensor& numbers) {
    ExponentCounter counter;
    counter.add(numbers.slice(0, 0, 0));
    counter.add_by_ops(numbers.contiguous());
    return counter.read();
  }
};

namespace {

const nlohmann::json& expected() {
  static const nlohmann::json numbers = nlohmann::json::parse(
      std::ifstream(source_dir() / "tests/fixtures/exponents/exponents.json"));
  return numbers;
}

// The numbers of tests/fixtures/exponents/make.py.
at::Tensor numbers_of(c10::ScalarType dtype) {
  const auto count = expected()["count"].get<int64_t>();
  at::Tensor bits = at::empty({count}, c10::kInt);
  auto* to = reinterpret_cast<uint32_t*>(bits.mutable_data_ptr<int32_t>());
  uint32_t x = 1;
  for (int64_t i = 0; i < count; ++i) to[i] = x = 1664525U * x + 1013904223U;
  if (dtype == c10::kFloat) return bits.view(dtype);
  return bits.bitwise_right_shift(16).to(c10::kShort).view(dtype);
}

void expect_numbers(const ExponentHistogram& found, const nlohmann::json& wanted) {
  for (int e = ExponentHistogram::kLowest; e <= ExponentHistogram::kHighest; ++e) {
    const auto times = wanted["counts"].value(std::to_string(e), int64_t{0});
    EXPECT_EQ(found.counts[static_cast<std::size_t>(e - ExponentHistogram::kLowest)], times) << e;
  }
  EXPECT_EQ(found.zeros, wanted["zeros"]);
  EXPECT_EQ(found.subnormals, wanted["subnormals"]);
  EXPECT_EQ(found.infinities, wanted["infinities"]);
  EXPECT_EQ(found.nans, wanted["nans"]);
  const double squares = wanted["sum_of_squares"];
  EXPECT_NEAR(found.sum_of_squares, squares, 1e-12 * squares);
}

const std::pair<const char*, c10::ScalarType> kFormats[] = {
    {"fp32", c10::kFloat}, {"fp16", c10::kHalf}, {"bf16", c10::kBFloat16}};

TEST(ExponentHistogram, CountsWhatNumpyCounts) {
  for (const auto& [name, dtype] : kFormats) {
    SCOPED_TRACE(name);
    expect_numbers(exponent_histogram(numbers_of(dtype)), expected()[name]);
  }
}

TEST(ExponentHistogram, TensorOperationsCountTheSame) {
  for (const auto& [name, dtype] : kFormats) {
    SCOPED_TRACE(name);
    expect_numbers(CounterTesting::by_ops(numbers_of(dtype)), expected()[name]);
  }
}

TEST(ExponentHistogram, FlushedSubnormalsAreStillCounted) {
  const FlushSubnormals flush(true);
  for (const auto& [name, dtype] : kFormats) {
    SCOPED_TRACE(name);
    const auto found = exponent_histogram(numbers_of(dtype));
    EXPECT_EQ(found.subnormals, expected()[name]["subnormals"]);
    EXPECT_EQ(found.zeros, expected()[name]["zeros"]);
  }
}

// IEEE 754-2019 section 3.4: each exponent of fp16 has 2^10 fractions and two signs; its subnormal
// numbers between 2^k and 2^(k+1) are as many as there are whole numbers between 2^(k+24) and twice
// that.
TEST(ExponentHistogram, KnowsAllNumbersOfFp16) {
  const at::Tensor all = at::arange(-32768, 32768, c10::kShort).view(c10::kHalf);
  const auto found = exponent_histogram(all);
  for (int e = -24; e < 16; ++e)
    EXPECT_EQ(found.counts[static_cast<std::size_t>(e + 149)], e < -14 ? 2 << (e + 24) : 2048) << e;
  EXPECT_EQ(found.zeros, 2);
  EXPECT_EQ(found.infinities, 2);
  EXPECT_EQ(found.nans, 2 * 1023);
  EXPECT_EQ(found.subnormals, 2 * 1023);
  EXPECT_EQ(found.elements(), 65536);
  EXPECT_EQ(found.from(16) + found.below(-24), 0);
}

TEST(ExponentHistogram, CountsEveryElementOfEveryLayout) {
  const at::Tensor x = at::randn({3, 8, 5, 7}), y = at::randn({40, 30});
  const auto whole = exponent_histogram(x);
  EXPECT_EQ(whole, exponent_histogram(x.contiguous(at::MemoryFormat::ChannelsLast).contiguous()));
  EXPECT_EQ(exponent_histogram(x.to(at::MemoryFormat::ChannelsLast)).counts, whole.counts);
  EXPECT_EQ(exponent_histogram(y.slice(1, 0, 30, 3)),
            exponent_histogram(y.slice(1, 0, 30, 3).contiguous()));
  EXPECT_EQ(exponent_histogram(at::ones({1}).expand({4, 5})).counts[149], 20);
  EXPECT_EQ(exponent_histogram(at::empty({0})).elements(), 0);
  EXPECT_EQ(exponent_histogram(at::scalar_tensor(3.0)).counts[150], 1);
}

TEST(ExponentHistogram, CountsTheValuesOfSparseTensors) {
  const at::Tensor dense = at::zeros({100, 4}).index_put_({at::tensor(7)}, at::ones({4}));
  const auto found = exponent_histogram(dense.to_sparse());
  EXPECT_EQ(found.elements(), 4);
  EXPECT_EQ(found.from(0), 4);
}

TEST(ExponentHistogram, EndBinsHoldWhatLiesBeyondThemInFp64) {
  const at::Tensor x = at::tensor({1e300, 1e-300, 5e-324, 0.0, 1.5, -1.5}, c10::kDouble);
  const auto found = exponent_histogram(x);
  EXPECT_EQ(found.counts.back(), 1);
  EXPECT_EQ(found.counts.front(), 2);
  EXPECT_EQ(found.from(0) - found.counts.back(), 2);
}

TEST(ExponentHistogram, SeveralTensorsAddUp) {
  ExponentCounter counter;
  counter.add(at::ones({10}));
  counter.add(at::full({5}, 2, c10::kHalf));
  counter.add(at::zeros({3}, c10::kBFloat16));
  const auto all = counter.read();
  EXPECT_EQ(all.counts[149], 10);
  EXPECT_EQ(all.counts[150], 5);
  EXPECT_EQ(all.zeros, 3);
  EXPECT_DOUBLE_EQ(all.norm(), std::sqrt(10 + 20));
  const std::vector<ExponentCounter> two(2, counter);
  EXPECT_EQ(ExponentCounter::read(two)[1], all);
  EXPECT_EQ(ExponentCounter().read().elements(), 0);
}

TEST(ExponentHistogram, ShiftsByPowersOfTwo) {
  const at::Tensor x = at::randn({1000}) * 1e-3;
  const auto shifted = exponent_histogram(x).shifted(16), scaled = exponent_histogram(x * 65536);
  EXPECT_EQ(shifted.counts, scaled.counts);
  EXPECT_DOUBLE_EQ(shifted.norm(), scaled.norm());
  EXPECT_EQ(exponent_histogram(x).shifted(1000).counts.back(), 1000);
}

TEST(ExponentHistogram, RefusesWholeNumbers) {
  EXPECT_THROW(exponent_histogram(at::ones({2}, c10::kInt)), UsageError);
}

}  // namespace
}  // namespace demi::monitor
