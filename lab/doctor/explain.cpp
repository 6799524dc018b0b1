#include "lab/doctor/explain.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <utility>
#include <vector>

#include "demi/autocast/slow_dtype.h"
#include "lab/doctor/shape_time.h"
#include "lab/profiler/profile_run.h"
#include "lab/recipes/machine.h"
#include "lab/recipes/plan.h"

namespace demi::doctor {
namespace {

constexpr double kSeconds = 10;  // of profiled steps, about
constexpr std::int64_t kMostSteps = 5;
constexpr std::size_t kMeasured = 6;  // dimensions

std::optional<c10::ScalarType> low_type(const recipes::RunSpec& run) {
  const train::Precision& precision = run.precision;
  if (precision.is_mixed()) return run.autocast ? precision.autocast : std::nullopt;
  const bool is_low =
      precision.weights == c10::ScalarType::Half || precision.weights == c10::ScalarType::BFloat16;
  return is_low ? std::optional(precision.weights) : std::nullopt;
}

bool is_fp32(const recipes::RunSpec& run) {
  return run.precision.weights == c10::ScalarType::Float && !run.precision.is_mixed();
}

bool is_whole(const recipes::RunResult& run) {
  return !run.history.stopped && !run.history.failed && !run.history.steps.empty();
}

bool is_minor(const recipes::Comparison& comparison, const recipes::RunResult& run) {
  return is_whole(run) && !low_dtype_of(run.spec).empty() && run.speedup > 0 &&
         run.speedup < recipes::kMinorSpeedup && is_fp32(comparison.runs.front().spec) &&
         is_whole(comparison.runs.front());
}

// Forward and the gradients of both factors.
double flops_share(const Dimension& d, double gflop) {
  const double flops =
      3 * 2 * static_cast<double>(d.m) * static_cast<double>(d.k) * static_cast<double>(d.n);
  return gflop > 0 ? std::min(1e-9 * flops / gflop, 1.0) : 1;
}

std::vector<WeighedDimension> weighed(const recipes::Config& config,
                                      const recipes::Workload& workload, const std::string& dtype,
                                      c10::Device device, double gflop) {
  const train::Network network = workload.make_network(static_cast<std::uint64_t>(config.seed));
  ModelCheck check = check_dimensions(*network.module, recipes::batch_size_of(config));
  const auto share = [gflop](const Dimension& one) { return flops_share(one, gflop); };
  std::erase_if(check.dimensions, [&](const Dimension& one) { return share(one) < kDimension; });
  std::ranges::stable_sort(check.dimensions, std::greater(), share);
  if (check.dimensions.size() > kMeasured) check.dimensions.resize(kMeasured);
  measure(check, dtype, device);
  std::vector<WeighedDimension> all;
  for (const Dimension& one : check.dimensions) all.push_back({one, share(one)});
  return all;
}

// Of large ones, whose rate the dtype's unit decides.
double product_gain(const std::string& dtype, c10::Device device) {
  const std::int64_t size = device.is_cpu() ? 1024 : 4096;
  return product_ms("fp32", size, size, size, device) / product_ms(dtype, size, size, size, device);
}

// Without instructions for the format, a region's products and LibTorch's own are different ones.
std::string no_unit_of(const recipes::RunSpec& run, c10::Device device) {
  const auto type = low_type(run);
  if (!type) return "";
  if (device.is_cpu() && !run.precision.is_mixed())
    return recipes::slow_precision_warning(run.precision, device);
  return why_slow(device.type(), *type);
}

// A warm-up step, the steps, and as many without the profiler.
std::int64_t steps_in_time(const recipes::RunResult& run) {
  const double step = run.seconds / static_cast<double>(run.history.steps.size());
  const double most = step > 0 ? (kSeconds / step - 1) / 2 : static_cast<double>(kMostSteps);
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(std::min(most, 1e3)), 1, kMostSteps);
}

}  // namespace

std::string low_dtype_of(const recipes::RunSpec& run) {
  const auto type = low_type(run);
  if (!type) return "";
  return *type == c10::ScalarType::Half ? "fp16" : "bf16";
}

SpeedupFacts facts_of(const recipes::Config& config, const recipes::RunSpec& run,
                      const recipes::Workload& workload, c10::Device device, std::int64_t steps) {
  SpeedupFacts facts{.dtype = low_dtype_of(run), .is_device = device.is_cuda()};
  facts.no_unit = no_unit_of(run, device);
  facts.product_gain = product_gain(facts.dtype, device);
  const profiler::RunProfile profile = profiler::profile_run(
      {.config = config, .device = device, .warmup = 1, .steps = steps, .kernel_names = false}, run,
      workload);
  facts.is_profiled = true;
  facts.profile = profile.summary;
  facts.dimensions = weighed(config, workload, facts.dtype, device, facts.profile.gflop);
  return facts;
}

bool has_minor_speedup(const recipes::Comparison& comparison) {
  return std::ranges::any_of(
      comparison.runs, [&](const recipes::RunResult& run) { return is_minor(comparison, run); });
}

void explain_speedups(recipes::Comparison& comparison, const recipes::Workload& workload,
                      c10::Device device) {
  for (recipes::RunResult& run : comparison.runs) {
    if (!is_minor(comparison, run)) continue;
    try {
      const SpeedupFacts facts =
          facts_of(comparison.config, run.spec, workload, device, steps_in_time(run));
      run.slow_causes = causes_of(facts);
      if (run.slow_causes.empty())
        comparison.notes.push_back(run.spec.label +
                                   ": none of the known causes of a minor speedup was found; "
                                   "`demi profile` shows its ops.");
    } catch (const std::exception& error) {
      comparison.notes.push_back(run.spec.label +
                                 ": why it is hardly faster was not measured: " + error.what());
    }
  }
}

}  // namespace demi::doctor
