#include "demi/monitor/exponent_histogram.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>

#include "demi/core/error.h"
#include "demi/kernels/exponent_counts.h"
#include "demi/tensor/dtype.h"
#include "demi/tensor/parallel.h"

namespace demi::monitor {
namespace {

constexpr int kBins = ExponentHistogram::kBins;
static_assert(kBins == kernels::kExponents);
static_assert(ExponentHistogram::kLowest == kernels::kLowestExponent);

enum : std::int64_t { kZeros = kBins, kSubnormals, kInfinities, kNans, kCounts };

void check_dtype(const at::Tensor& numbers) {
  const auto dtype = numbers.scalar_type();
  if (dtype == c10::kFloat || dtype == c10::kDouble || tensor::is_16_bit(dtype)) return;
  refuse({.where = "monitor.ExponentCounter.add",
          .what = "the tensor holds no numbers of a format that is counted",
          .seen = tensor::name_of(dtype),
          .accepted = "fp32, fp16, bf16, fp64"});
}

// The exponent of the dtype's smallest normal number.
int least_normal(c10::ScalarType dtype) {
  return dtype == c10::kDouble ? -1022 : dtype == c10::kHalf ? -14 : -126;
}

std::int64_t bins_of_subnormals(c10::ScalarType dtype) {
  return std::max(0, least_normal(dtype) - ExponentHistogram::kLowest);
}

void count_range(const at::Tensor& dense, std::int64_t begin, std::int64_t end,
                 kernels::ExponentCounts& to) {
  const void* data = dense.const_data_ptr();
  if (dense.scalar_type() == c10::kDouble)
    kernels::count_exponents(static_cast<const double*>(data), begin, end, to);
  else
    kernels::count_exponents(tensor::storage_of(dense.scalar_type()), data, begin, end, to);
}

}  // namespace

std::int64_t ExponentHistogram::elements() const {
  return zeros + infinities + nans + from(kLowest);
}

double ExponentHistogram::norm() const { return std::sqrt(sum_of_squares); }

std::int64_t ExponentHistogram::below(int exponent) const {
  std::int64_t sum = 0;
  for (int e = kLowest; e < std::min(exponent, kHighest + 1); ++e)
    sum += counts[static_cast<std::size_t>(e - kLowest)];
  return sum;
}

std::int64_t ExponentHistogram::from(int exponent) const {
  std::int64_t sum = 0;
  for (int e = std::max(exponent, kLowest); e <= kHighest; ++e)
    sum += counts[static_cast<std::size_t>(e - kLowest)];
  return sum;
}

ExponentHistogram ExponentHistogram::shifted(int exponents) const {
  ExponentHistogram result = *this;
  result.counts.fill(0);
  for (int e = kLowest; e <= kHighest; ++e) {
    const int to = std::clamp(e + exponents, kLowest, kHighest);
    result.counts[static_cast<std::size_t>(to - kLowest)] +=
        counts[static_cast<std::size_t>(e - kLowest)];
  }
  result.sum_of_squares = std::ldexp(sum_of_squares, 2 * exponents);
  return result;
}

ExponentHistogram& ExponentHistogram::operator+=(const ExponentHistogram& other) {
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts[i];
  zeros += other.zeros;
  subnormals += other.subnormals;
  infinities += other.infinities;
  nans += other.nans;
  sum_of_squares += other.sum_of_squares;
  return *this;
}

void ExponentCounter::add(const at::Tensor& numbers) {
  const at::NoGradGuard no_grad;
  if (!numbers.defined()) return;
  if (numbers.is_sparse()) return add(numbers.coalesce().values());
  check_dtype(numbers);
  if (!counts_.defined()) {
    counts_ = at::zeros({kCounts}, numbers.options().dtype(c10::kLong));
    squares_ = at::zeros({1}, numbers.options().dtype(c10::kDouble));
  }
  if (numbers.numel() == 0) return;
  // Counts in the order of memory, in any order of the dimensions.
  const at::Tensor dense = numbers.detach();
  const at::Tensor held = dense.is_non_overlapping_and_dense() ? dense : dense.contiguous();
  held.is_cpu() ? add_on_cpu(held) : add_by_ops(held);
}

// Chunks are of one size, so that the number of threads does not change the sum of squares.
void ExponentCounter::add_on_cpu(const at::Tensor& dense) {
  const std::int64_t all = dense.numel(), size = tensor::kElementsPerThread;
  const std::int64_t chunks = (all + size - 1) / size;
  std::vector<double> squares(static_cast<std::size_t>(chunks));
  auto* counts = counts_.mutable_data_ptr<std::int64_t>();
  std::mutex mutex;
  at::parallel_for(0, chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    kernels::ExponentCounts own;
    for (std::int64_t chunk = begin; chunk < end; ++chunk) {
      own.sum_of_squares = 0;
      count_range(dense, chunk * size, std::min(all, (chunk + 1) * size), own);
      squares[static_cast<std::size_t>(chunk)] = own.sum_of_squares;
    }
    const std::lock_guard lock(mutex);
    for (std::int64_t i = 0; i < kBins; ++i)
      counts[i] += own.of_exponent[static_cast<std::size_t>(i)];
    for (std::int64_t i = 0; i < bins_of_subnormals(dense.scalar_type()); ++i)
      counts[kSubnormals] += own.of_exponent[static_cast<std::size_t>(i)];
    counts[kZeros] += own.zeros;
    counts[kInfinities] += own.infinities;
    counts[kNans] += own.nans;
  });
  for (const double sum : squares) *squares_.mutable_data_ptr<double>() += sum;
}

// histc counts in the dtype of its input, which is exact in fp32 up to 2^24 elements.
void ExponentCounter::add_by_ops(const at::Tensor& numbers) {
  const std::int64_t all = numbers.numel(), size = std::int64_t{1} << 23;
  const at::Tensor flat = numbers.as_strided({all}, {1});
  for (std::int64_t begin = 0; begin < all; begin += size) {
    const at::Tensor piece = flat.narrow(0, begin, std::min(size, all - begin));
    const at::Tensor x = tensor::is_16_bit(piece.scalar_type()) ? piece.to(c10::kFloat) : piece;
    const at::Tensor is_nan = x.isnan(), is_infinite = x.isinf(), is_zero = x.eq(0);
    const at::Tensor finite = x.nan_to_num(0, 0, 0);
    at::Tensor index = std::get<1>(at::frexp(finite))  // in [0.5, 1) × 2^exponent
                           .sub_(1 + ExponentHistogram::kLowest)
                           .clamp_(0, kBins - 1)
                           .masked_fill_(is_zero, kZeros)
                           .masked_fill_(is_infinite, kInfinities)
                           .masked_fill_(is_nan, kNans);
    const at::Tensor counted =
        at::histc(index.to(c10::kFloat).add_(0.5), kCounts, 0, kCounts).to(c10::kLong);
    counts_ += counted;
    const std::int64_t subnormal = bins_of_subnormals(piece.scalar_type());
    if (subnormal > 0) counts_.select(0, kSubnormals).add_(counted.narrow(0, 0, subnormal).sum());
    squares_ += finite.to(c10::kDouble).square_().sum();
  }
}

ExponentHistogram ExponentCounter::read() const { return read(std::span(this, 1)).front(); }

std::vector<ExponentHistogram> ExponentCounter::read(std::span<const ExponentCounter> counters) {
  std::map<std::string, std::vector<std::size_t>> by_device;
  for (std::size_t i = 0; i < counters.size(); ++i)
    if (counters[i].counts_.defined()) by_device[counters[i].counts_.device().str()].push_back(i);
  std::vector<ExponentHistogram> all(counters.size());
  for (const auto& [device, indices] : by_device) {
    std::vector<at::Tensor> counts, squares;
    for (const std::size_t i : indices) {
      counts.push_back(counters[i].counts_);
      squares.push_back(counters[i].squares_);
    }
    const at::Tensor read_counts = at::stack(counts).cpu(), read_squares = at::stack(squares).cpu();
    for (std::size_t row = 0; row < indices.size(); ++row) {
      ExponentHistogram& to = all[indices[row]];
      const auto* from = read_counts.const_data_ptr<std::int64_t>() + row * std::size_t{kCounts};
      std::copy_n(from, kBins, to.counts.begin());
      to.zeros = from[kZeros];
      to.subnormals = from[kSubnormals];
      to.infinities = from[kInfinities];
      to.nans = from[kNans];
      to.sum_of_squares = read_squares.const_data_ptr<double>()[row];
    }
  }
  return all;
}

ExponentHistogram exponent_histogram(const at::Tensor& numbers) {
  ExponentCounter counter;
  counter.add(numbers);
  return counter.read();
}

}  // namespace demi::monitor
