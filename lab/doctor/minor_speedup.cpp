#include "lab/doctor/minor_speedup.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "lab/doctor/advice.h"
#include "lab/recipes/compare.h"
#include "lab/report/format.h"

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

}  // namespace

std::vector<SlowCause> causes_of(const SpeedupFacts& facts) {
  std::vector<SlowCause> causes;
  const auto add = [&](std::optional<SlowCause> cause) {
    if (cause) causes.push_back(std::move(*cause));
  };
  add(no_unit(facts));
  if (facts.is_profiled) {
    // Without a GPU's kernels, times are the host's and say nothing of it.
    const bool has_times = !facts.is_device || facts.profile.is_device;
    if (has_times) add(idle(facts));
    add(waits(facts));
    if (has_times) add(short_kernels(facts));
    add(dimensions(facts));
    if (has_times) add(little_in_16_bits(facts));
  }
  return causes;
}

}  // namespace demi::doctor
