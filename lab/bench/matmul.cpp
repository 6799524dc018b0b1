#include "lab/bench/matmul.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "demi/core/error.h"
#include "demi/core/nearest.h"
#include "demi/profile/memory.h"
#include "lab/bench/timing.h"

namespace demi::bench {
namespace {

// Memory for each element of a matrix: three FP32 matrices, three of 16 bits, three more in FP32
// where 16-bit products run through FP32, and one in FP64 for the check.
constexpr double kBytesPerElement = 12 + 6 + 12 + 8;
constexpr double kShare = 0.8;      // of what is free
constexpr double kRoundMs = 1;      // of products that are timed at once
constexpr double kPeakSeconds = 1;  // of the measurement of a dtype's peak
constexpr const char* kWhere = "bench.matmul";

std::vector<ProductKind> kinds_of(const MatmulBenchOptions& options, c10::Device device) {
  const std::vector<ProductKind> here = product_kinds(device);
  std::vector<std::string> known;
  for (const ProductKind& kind : here)
    if (known.empty() || known.back() != kind.dtype) known.push_back(kind.dtype);
  std::vector<std::string> asked = options.dtypes.empty() ? known : options.dtypes;
  for (const std::string& dtype : asked)
    if (std::ranges::find(known, dtype) == known.end())
      refuse({.where = kWhere,
              .what = "no such dtype on " + device.str(),
              .seen = dtype,
              .advice = did_you_mean(dtype, known)});
  std::vector<ProductKind> kinds;
  for (const ProductKind& kind : here)
    if (kind.dtype == "fp32" || std::ranges::find(asked, kind.dtype) != asked.end())
      kinds.push_back(kind);
  return kinds;
}

std::vector<int64_t> sizes_of(const MatmulBenchOptions& options, c10::Device device) {
  std::vector<int64_t> sizes = options.sizes;
  std::ranges::sort(sizes);
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  const int64_t most = most_size(profile::free_memory(device));
  const std::string seen = fmt::format("{}", fmt::join(options.sizes, ","));
  if (sizes.empty() || sizes.front() < 1 || sizes.back() > most)
    refuse({.where = kWhere,
            .what = sizes.empty()         ? "no size is given"
                    : sizes.back() > most ? "a size is beyond the free memory"
                                          : "a size is below 1",
            .seen = seen,
            .accepted = fmt::format("1 to {} here", most)});
  return sizes;
}

void require_right(const MatmulRow& row) {
  if (row.error <= error_bound(row.kind)) return;
  throw TrainingError(
      {.where = kWhere,
       .what = fmt::format("the {} product of size {} is wrong", row.kind.dtype, row.size),
       .seen = fmt::format("an error of {:.3g}", row.error),
       .accepted = fmt::format("at most {:.3g}", error_bound(row.kind))});
}

// A row that is being measured.
struct TimedKind {
  TimedKind(const ProductKind& kind, int64_t size, c10::Device device)
      : product(kind, size, device), row{.kind = kind, .size = size} {
    row.error = product.error();
    require_right(row);
  }

  bool is_done(const MatmulBenchOptions& options) const {
    return row.iterations >= options.iterations || spent_ms >= 1e3 * options.seconds;
  }

  SquareProduct product;
  MatmulRow row;
  Times ms;  // of one product
  int64_t at_once = 1;
  double spent_ms = 0;
};

void time_once(TimedKind& one, const MatmulBenchOptions& options, c10::Device device) {
  const int64_t times = std::min(one.at_once, options.iterations - one.row.iterations);
  const double ms = milliseconds(device, [&] { one.product.run(times); });
  one.ms.add(ms / static_cast<double>(times));
  one.row.iterations += times;
  one.spent_ms += ms;
}

// Sets the number of products at once so that the clock and the wait for the device do not count.
void warm_up(TimedKind& one, c10::Device device) {
  const double ms = milliseconds(device, [&] { one.product.run(); });
  one.at_once = std::max<int64_t>(1, std::llround(kRoundMs / std::max(ms, 1e-6)));
}

std::vector<MatmulRow> measure(const std::vector<ProductKind>& kinds, int64_t size,
                               const MatmulBenchOptions& options, c10::Device device) {
  std::vector<TimedKind> all;
  all.reserve(kinds.size());
  for (const ProductKind& kind : kinds) all.emplace_back(kind, size, device);
  for (TimedKind& one : all) warm_up(one, device);
  const auto is_done = [&](const TimedKind& one) { return one.is_done(options); };
  while (!std::ranges::all_of(all, is_done))
    for (TimedKind& one : all)
      if (!is_done(one)) time_once(one, options, device);
  std::vector<MatmulRow> rows;
  for (TimedKind& one : all) {
    MatmulRow row = one.row;
    row.seconds = one.ms.median() / 1e3;
    row.tflops = one.product.flop() / row.seconds / 1e12;
    row.speedup = all.front().ms.median() / one.ms.median();
    rows.push_back(row);
  }
  return rows;
}

// The seconds that a product of that size will take, by the rows so far; 0 if there is none of the
// kind.
double foreseen_seconds(const std::vector<MatmulRow>& rows, const ProductKind& kind, int64_t size) {
  double seconds = 0;
  for (const MatmulRow& row : rows)
    if (row.kind == kind)
      seconds =
          row.seconds * std::pow(static_cast<double>(size) / static_cast<double>(row.size), 3);
  return seconds;
}

void measure_size(MatmulBenchResult& result, const std::vector<ProductKind>& kinds, int64_t size,
                  const MatmulBenchOptions& options, c10::Device device) {
  std::vector<ProductKind> timed;
  for (const ProductKind& kind : kinds) {
    const double seconds = foreseen_seconds(result.rows, kind, size);
    if (kind.dtype == "fp32" || seconds <= options.seconds)
      timed.push_back(kind);
    else
      result.left_out.push_back({kind, size, seconds});
  }
  for (const MatmulRow& row : measure(timed, size, options, device)) result.rows.push_back(row);
}

}  // namespace

int64_t most_size(int64_t free_bytes) {
  const double elements = kShare * static_cast<double>(std::max<int64_t>(free_bytes, 0));
  return static_cast<int64_t>(std::sqrt(elements / kBytesPerElement));
}

MatmulBenchResult bench_matmul(const MatmulBenchOptions& options, c10::Device device) {
  if (options.iterations < 1 || !(options.seconds > 0))
    refuse({.where = kWhere,
            .what = "iterations or seconds are out of range",
            .seen = fmt::format("{} and {}", options.iterations, options.seconds),
            .accepted = "iterations of 1 or more, seconds above 0"});
  const std::vector<ProductKind> kinds = kinds_of(options, device);
  const std::vector<int64_t> sizes = sizes_of(options, device);
  MatmulBenchResult result{.machine = recipes::machine(device)};
  torch::manual_seed(0);
  Parts parts(options.on_part, sizes.size() + 1);
  for (const int64_t size : sizes) {
    parts.begin(fmt::format("size {}", size));
    measure_size(result, kinds, size, options, device);
  }

  parts.begin("the machine's rates");
  result.copy_gb_per_s = copy_gb_per_s(device);
  const double seconds = std::min(kPeakSeconds, options.seconds);
  for (const ProductKind& kind : kinds) {
    double& peak = result.peak_tflops[kind.dtype];
    peak = std::max(peak, best_rate(kind, device, seconds).tflops);
  }
  for (const MatmulRow& row : result.rows) {
    double& peak = result.peak_tflops[row.kind.dtype];
    peak = std::max(peak, row.tflops);
  }
  for (MatmulRow& row : result.rows) {
    const auto n = static_cast<double>(row.size);
    const double element = row.kind.dtype == "fp32" || row.kind.dtype == "tf32" ? 4 : 2;
    const Roofline roofline{result.peak_tflops[row.kind.dtype], result.copy_gb_per_s};
    row.of_peak = row.tflops / attainable_tflops(roofline, 2 * n * n * n, 3 * n * n * element);
  }
  return result;
}

}  // namespace demi::bench
