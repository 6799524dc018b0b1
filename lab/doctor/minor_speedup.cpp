#include "lab/doctor/minor_speedup.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <utility>

#include "demi/autocast/slow_dtype.h"
#include "lab/doctor/advice.h"
#include "lab/doctor/shape_time.h"
#include "lab/profiler/profile_run.h"
#include "lab/recipes/machine.h"
#include "lab/report/format.h"
#include "lab/settings/resolved.h"

namespace demi::doctor {
namespace {

using recipes::SlowCause;

constexpr std::size_t kNamed = 3;      // places, dimensions and ops in one sentence
constexpr double kWorthNaming = 0.01;  // of the ops' time

std::string percent_of(double share) { return report::format_percent(share, 0); }

std::optional<SlowCause> no_unit(const SpeedupFacts& f) {
  const bool is_measured = f.product_gain > 0;
  const std::string rate = fmt::format(
      "a large {} product in a region runs at {:.2f} times FP32's rate", f.dtype, f.product_gain);
  if (!f.no_unit.empty())
    return SlowCause{"no_unit", f.product_gain, f.no_unit + (is_measured ? "; " + rate : "")};
  if (is_measured && f.product_gain < recipes::kMinorSpeedup)
    return SlowCause{"no_unit", f.product_gain, rate + " on this device"};
  return std::nullopt;
}

double phase_share(const profiler::Summary& profile, std::string_view name) {
  for (const auto& [phase, ms] : profile.phase_ms)
    if (phase == name) return profile.step_ms > 0 ? ms / profile.step_ms : 0;
  return 0;
}

std::optional<SlowCause> idle(const SpeedupFacts& f) {
  const profiler::Summary& p = f.profile;
  if (p.idle_share < kIdle) return std::nullopt;
  const std::string where =
      f.is_device ? "the device is idle for {} of a step" : "{} of a step is outside ops";
  std::string text = fmt::format(fmt::runtime(where), percent_of(p.idle_share));
  const double data = phase_share(p, "data");
  text += data > p.idle_share / 2
              ? fmt::format(", {} in waiting for data: more --workers", percent_of(data))
              : ": the host is the limit; a larger batch or a wider network gives it more to do";
  return SlowCause{"idle", p.idle_share, text};
}

std::optional<SlowCause> waits(const SpeedupFacts& f) {
  const double count = f.profile.syncs_of_a_step();
  if (!f.is_device || count < kWaits) return std::nullopt;
  std::string text =
      fmt::format("the host waits for the device {} times a step", report::format_number(count, 3));
  const auto& all = f.profile.syncs;
  for (std::size_t i = 0; i < std::min(all.size(), kNamed); ++i)
    text += fmt::format("{} {} ({})", i == 0 ? ":" : ",", all[i].place,
                        report::format_number(all[i].calls, 3));
  if (all.size() > kNamed) text += fmt::format(" and {} places more", all.size() - kNamed);
  return SlowCause{"waits", count, text + "; read numbers every hundred steps instead"};
}

std::optional<SlowCause> short_kernels(const SpeedupFacts& f) {
  const profiler::Summary& p = f.profile;
  if (p.short_share < 0.5 || p.short_time_share < kShortTime) return std::nullopt;
  return SlowCause{
      "short_kernels", p.short_share,
      fmt::format("{} of the {} {} of a step take less than 10 us, {} of their time: a larger "
                  "batch or a wider network makes them longer",
                  percent_of(p.short_share), report::format_number(p.kernels, 3),
                  f.is_device ? "kernels" : "ops", percent_of(p.short_time_share))};
}

// Products that take little of a step, and those whose next multiple of 8 was measured and gains
// nothing, are no cause.
std::optional<SlowCause> dimensions(const SpeedupFacts& f) {
  std::vector<const WeighedDimension*> all;
  for (const WeighedDimension& one : f.dimensions) {
    const double gain = one.dimension.speedup;
    if (one.flops_share >= kDimension && (gain == 0 || gain >= kLeastGain)) all.push_back(&one);
  }
  if (all.empty()) return std::nullopt;
  std::ranges::stable_sort(all, std::greater(), &WeighedDimension::flops_share);
  std::string text = "products of other sizes than multiples of 8:";
  for (std::size_t i = 0; i < std::min(all.size(), kNamed); ++i) {
    const Dimension& d = all[i]->dimension;
    text += fmt::format("{} {} is {}, the next good value is {} ({} of the FLOPs",
                        i == 0 ? "" : ";", d.module.empty() ? d.name : d.module + "." + d.name,
                        d.value, d.next, report::format_share(all[i]->flops_share));
    text += d.speedup > 0 ? fmt::format(", that product {:.2f} times as fast)", d.speedup) : ")";
  }
  if (all.size() > kNamed) text += fmt::format("; and {} more", all.size() - kNamed);
  return SlowCause{"dimensions", static_cast<double>(all.size()), text};
}

// Amdahl's law: what is not in 16 bits gains nothing.
std::optional<SlowCause> little_in_16_bits(const SpeedupFacts& f) {
  const profiler::Summary& p = f.profile;
  if (p.low_time_share >= kLittleLow || p.ops_ms <= 0) return std::nullopt;
  std::string others;
  std::size_t named = 0;
  for (const profiler::OpUse& use : p.ops) {
    if (use.is_low || use.ms < kWorthNaming * p.ops_ms || named == kNamed) continue;
    others +=
        fmt::format("{}{} ({}, {})", named++ == 0 ? "" : ", ", use.name,
                    use.dtype.empty() ? "no dtype" : use.dtype, percent_of(use.ms / p.ops_ms));
  }
  return SlowCause{
      "little_in_16_bits", p.low_time_share,
      fmt::format("{} of the ops' time is in 16 bits{}{}", percent_of(p.low_time_share),
                  others.empty() ? "" : "; most of the rest: ", others)};
}

constexpr double kSeconds = 10;  // of profiled steps, about
constexpr std::int64_t kMostSteps = 5;
constexpr std::size_t kMeasured = 6;  // dimensions

std::optional<c10::ScalarType> low_type(const settings::RunSpec& run) {
  const Precision& precision = run.precision;
  if (precision.is_mixed()) return run.autocast ? precision.autocast : std::nullopt;
  const bool is_low =
      precision.weights == c10::ScalarType::Half || precision.weights == c10::ScalarType::BFloat16;
  return is_low ? std::optional(precision.weights) : std::nullopt;
}

bool is_fp32(const settings::RunSpec& run) {
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

double flops_share(const Dimension& d, double gflop) {
  return gflop > 0 ? std::min(1e-9 * d.flops() / gflop, 1.0) : 1;
}

std::vector<WeighedDimension> weighed(const settings::Config& config,
                                      const workload::Workload& workload, const std::string& dtype,
                                      c10::Device device, double gflop) {
  const train::Network network = workload.make_network(static_cast<std::uint64_t>(config.seed));
  Batch batch = batch_of(config, config.batch_size);
  if (workload.input.kind == data::Kind::texts)  // as long as the longest of its batch
    batch.words = workload.train->batch(0, 0).input.size(1);
  ModelCheck check = check_dimensions(*network.module, batch);
  const auto share = [gflop](const Dimension& one) { return flops_share(one, gflop); };
  std::erase_if(check.dimensions, [&](const Dimension& one) { return share(one) < kDimension; });
  std::ranges::stable_sort(check.dimensions, std::greater(), share);
  if (check.dimensions.size() > kMeasured) check.dimensions.resize(kMeasured);
  measure(check, dtype, device);
  std::vector<WeighedDimension> all;
  for (const Dimension& one : check.dimensions) all.push_back({one, share(one)});
  return all;
}

// The gain of large products, whose rate the dtype's unit decides.
double product_gain(const std::string& dtype, c10::Device device) {
  const std::int64_t size = device.is_cpu() ? 1024 : 4096;
  return product_ms("fp32", size, size, size, device) / product_ms(dtype, size, size, size, device);
}

// Why the products have no units. Without instructions for the format, a region's products are not
// LibTorch's own.
std::string no_unit_of(const settings::RunSpec& run, c10::Device device) {
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

std::vector<SlowCause> causes_of(const SpeedupFacts& facts) {
  std::vector<SlowCause> causes;
  const auto add = [&](std::optional<SlowCause> cause) {
    if (cause) causes.push_back(std::move(*cause));
  };
  add(no_unit(facts));
  if (facts.is_profiled) {
    // Times are the host's without a GPU's kernels, and show nothing about the GPU.
    const bool has_times = !facts.is_device || facts.profile.is_device;
    if (has_times) add(idle(facts));
    add(waits(facts));
    if (has_times) add(short_kernels(facts));
    add(dimensions(facts));
    if (has_times) add(little_in_16_bits(facts));
  }
  return causes;
}

std::string low_dtype_of(const settings::RunSpec& run) {
  const auto type = low_type(run);
  if (!type) return "";
  return *type == c10::ScalarType::Half ? "fp16" : "bf16";
}

SpeedupFacts facts_of(const settings::Config& config, const settings::RunSpec& run,
                      const workload::Workload& workload, c10::Device device, std::int64_t steps) {
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

void explain_speedups(recipes::Comparison& comparison, const workload::Workload& workload,
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
