#include "lab/results/health.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <set>
#include <utility>

#include "lab/report/format.h"
#include "lab/report/table.h"

namespace demi::results {
namespace {

using monitor::ExponentHistogram;
using monitor::FlushedShares;
using monitor::LayerHealth;
using monitor::StepHealth;

struct Bins {
  int low = 0, high = -1;  // exponents of the first and the last bin that holds a number
  bool empty() const { return high < low; }
};

Bins bins_of(const ExponentHistogram& counts) {
  Bins bins;
  for (int e = ExponentHistogram::kLowest; e <= ExponentHistogram::kHighest; ++e) {
    if (counts.counts[static_cast<std::size_t>(e - ExponentHistogram::kLowest)] == 0) continue;
    if (bins.empty()) bins.low = e;
    bins.high = e;
  }
  return bins;
}

int64_t count_of(const ExponentHistogram& counts, int exponent) {
  return counts.counts[static_cast<std::size_t>(exponent - ExponentHistogram::kLowest)];
}

report::MetricFields line_of(const std::string& run, const StepHealth& step,
                             const LayerHealth& layer, const char* kind,
                             const ExponentHistogram& counts) {
  report::MetricFields line{{"run", run},
                            {"epoch", step.epoch},
                            {"step", step.step},
                            {"gradients", std::string(kind)},
                            {"layer", layer.name},
                            {"loss_scale", step.loss_scale.value_or(1)},
                            {"elements", counts.elements()},
                            {"zeros", counts.zeros},
                            {"subnormals", counts.subnormals},
                            {"infinities", counts.infinities},
                            {"nans", counts.nans},
                            {"norm", counts.norm() / step.loss_scale.value_or(1)}};
  const Bins bins = bins_of(counts);
  std::vector<int64_t> times;
  for (int e = bins.low; e <= bins.high; ++e) times.push_back(count_of(counts, e));
  line.emplace_back("first_exponent", int64_t{bins.low});
  line.emplace_back("counts", std::move(times));
  return line;
}

// The gradients of all monitored steps that were taken, at the scale of each.
struct Gradients {
  ExponentHistogram plain, scaled;
  FlushedShares shares;          // of all of them
  monitor::NarrowShares narrow;  // likewise

  void add(const ExponentHistogram& counts, double scale, const monitor::NarrowShares& of_narrow) {
    const auto before = static_cast<double>(scaled.elements());
    const auto more = static_cast<double>(counts.elements());
    if (more == 0) return;
    const FlushedShares now = monitor::flushed_shares(counts, scale);
    const auto mean = [&](double& held, double added) {
      held = (held * before + added * more) / (before + more);
    };
    mean(shares.zero, now.zero);
    mean(shares.flushed_unscaled, now.flushed_unscaled);
    mean(shares.flushed_scaled, now.flushed_scaled);
    mean(shares.overflowed_unscaled, now.overflowed_unscaled);
    mean(shares.overflowed_scaled, now.overflowed_scaled);
    mean(narrow.e4m3, of_narrow.e4m3);
    mean(narrow.e5m2, of_narrow.e5m2);
    mean(narrow.e2m1, of_narrow.e2m1);
    scaled += counts;
    plain += monitor::unscaled(counts, scale);
  }
};

report::ExponentBars::Bars bars_of(const std::string& name, const ExponentHistogram& counts) {
  report::ExponentBars::Bars bars{.name = name, .percent = {}};
  const double all = std::max<double>(1, static_cast<double>(counts.elements()));
  for (int e = ExponentHistogram::kLowest; e <= ExponentHistogram::kHighest; ++e)
    if (count_of(counts, e) > 0)
      bars.percent[e] = 100 * static_cast<double>(count_of(counts, e)) / all;
  bars.zero_percent = 100 * static_cast<double>(counts.zeros) / all;
  return bars;
}

std::string in_narrow(const monitor::NarrowShares& shares) {
  return fmt::format(
      " With one scale for each layer, {} would become zero in fp8_e4m3, {} in fp8_e5m2 and {} in "
      "fp4_e2m1; with scales for blocks, at most so many.",
      report::format_share(shares.e4m3), report::format_share(shares.e5m2),
      report::format_share(shares.e2m1));
}

std::string in_fp16(const FlushedShares& shares, bool scaled) {
  std::string text =
      fmt::format("Exactly zero: {}. In fp16, unscaled, {} would become zero and {} would overflow",
                  report::format_share(shares.zero), report::format_share(shares.flushed_unscaled),
                  report::format_share(shares.overflowed_unscaled));
  if (scaled)
    text +=
        fmt::format("; times the loss scale {} and {}", report::format_share(shares.flushed_scaled),
                    report::format_share(shares.overflowed_scaled));
  return text + ".";
}

report::ExponentBars figure_of(const std::string& title, const Gradients& gradients, bool scaled) {
  const std::vector<report::Mark> marks{
      {-24, "2^-24"}, {-14, "2^-14"}, {std::log2(65504.0), "65504"}};
  report::ExponentBars figure{
      .title = title,
      .bars = {bars_of("gradients", gradients.plain)},
      .marks = marks,
      .note = in_fp16(gradients.shares, scaled) + in_narrow(gradients.narrow)};
  if (scaled) figure.bars.push_back(bars_of("times the loss scale", gradients.scaled));
  return figure;
}

std::string share_of(int64_t part, const ExponentHistogram& counts) {
  const int64_t all = counts.elements();
  return all == 0 ? "" : report::format_share(static_cast<double>(part) / static_cast<double>(all));
}

report::Table table_of(const std::string& run, const StepHealth& step) {
  report::Table table{.title = fmt::format("{}: layers in step {}", run, step.step)};
  table.columns = {{.name = "layer", .align = report::Align::kLeft},
                   {.name = "weight gradients"},
                   {.name = "L2 norm"},
                   {.name = "zero"},
                   {.name = "denormal"},
                   {.name = "Inf or NaN"},
                   {.name = "activation gradients"},
                   {.name = "zero"},
                   {.name = "denormal"},
                   {.name = "Inf or NaN"},
                   {.name = "update / weight"},
                   {.name = "unchanged"}};
  const double scale = step.loss_scale.value_or(1);
  for (const LayerHealth& layer : step.layers) {
    const ExponentHistogram &w = layer.weight_gradients, &a = layer.activation_gradients;
    const auto count = [](const ExponentHistogram& h) {
      return h.elements() == 0 ? "" : report::format_count(h.elements());
    };
    table.rows.push_back({layer.name, count(w), report::format_number(w.norm() / scale, 3),
                          share_of(w.zeros, w), share_of(w.subnormals, w),
                          share_of(w.infinities + w.nans, w), count(a), share_of(a.zeros, a),
                          share_of(a.subnormals, a), share_of(a.infinities + a.nans, a),
                          layer.update_ratio ? report::format_number(*layer.update_ratio, 3) : "",
                          layer.unchanged ? report::format_share(*layer.unchanged) : ""});
  }
  table.notes = {
      "Denormal: below the smallest normal number of the format that the gradient is "
      "stored in, where it loses digits; as stored, times the loss scale.",
      "Unchanged: of the weights with a gradient other than 0, those that the step left as they "
      "were, in the format that they are trained in."};
  return table;
}

void add_blocks(const recipes::RunResult& run, std::vector<report::Block>& charts,
                std::vector<report::Block>& tables) {
  if (run.health.empty()) return;
  Gradients weights, activations;
  const StepHealth* last = &run.health.front();
  bool scaled = false;
  for (const StepHealth& step : run.health) {
    if (step.skipped) continue;
    const double scale = step.loss_scale.value_or(1);
    scaled |= step.loss_scale.has_value();
    weights.add(step.weight_gradients(), scale,
                monitor::narrow_shares(step, &LayerHealth::weight_gradients));
    activations.add(step.activation_gradients(), scale,
                    monitor::narrow_shares(step, &LayerHealth::activation_gradients));
    last = &step;
  }
  const std::string& label = run.spec.label;
  charts.emplace_back(figure_of(label + ": gradients of activations", activations, scaled));
  charts.emplace_back(figure_of(label + ": gradients of weights", weights, scaled));
  tables.emplace_back(table_of(label, *last));
}

}  // namespace

std::vector<report::MetricFields> health_lines(const std::string& run, const StepHealth& step) {
  std::vector<report::MetricFields> lines;
  for (const LayerHealth& layer : step.layers) {
    lines.push_back(line_of(run, step, layer, "weights", layer.weight_gradients));
    if (layer.update_ratio) lines.back().emplace_back("update_ratio", *layer.update_ratio);
    if (layer.unchanged) lines.back().emplace_back("unchanged", *layer.unchanged);
    lines.push_back(line_of(run, step, layer, "activations", layer.activation_gradients));
  }
  return lines;
}

namespace {

// The fields of a line. `wrong` names one that is missing or cannot be.
struct LineReader {
  const report::MetricFields& line;
  std::string wrong = {};

  template <class Value>
  Value field(const char* name) {
    if (const auto* value = report::find_metric<Value>(line, name)) return *value;
    if (wrong.empty()) wrong = name;
    return {};
  }
  int64_t count(const char* name) { return field<int64_t>(name); }
  double number(const char* name) {
    if (const auto* value = report::find_metric<double>(line, name)) return *value;
    return static_cast<double>(count(name));
  }
  void require(bool holds, const char* name) {
    if (!holds && wrong.empty()) wrong = name;
  }
};

ExponentHistogram histogram_in(LineReader& line) {
  ExponentHistogram counts;
  counts.zeros = line.count("zeros");
  counts.subnormals = line.count("subnormals");
  counts.infinities = line.count("infinities");
  counts.nans = line.count("nans");
  const double norm = line.number("norm") * line.number("loss_scale");
  counts.sum_of_squares = norm * norm;
  const auto times = line.field<std::vector<int64_t>>("counts");
  const int64_t first = line.count("first_exponent") - ExponentHistogram::kLowest;
  const int64_t room = ExponentHistogram::kBins - static_cast<int64_t>(times.size());
  line.require(first >= 0 && first <= room, "first_exponent");
  if (line.wrong.empty()) std::ranges::copy(times, counts.counts.begin() + first);
  line.require(counts.elements() == line.count("elements"), "elements");
  return counts;
}

// The one that answers to it, made if it is not there.
template <class Element, class Value, class Projection>
Element& find_or_add(std::vector<Element>& elements, const Value& value, Projection projection) {
  const auto found = std::ranges::find(elements, value, projection);
  if (found != elements.end()) return *found;
  Element& added = elements.emplace_back();
  std::invoke(projection, added) = value;
  return added;
}

// The name of a field that is missing or wrong; empty: the line was read.
std::string read_line(HealthLines& health, const report::MetricFields& fields) {
  LineReader line{fields};
  const auto run = line.field<std::string>("run"), layer = line.field<std::string>("layer");
  const auto kind = line.field<std::string>("gradients");
  const int64_t step = line.count("step"), epoch = line.count("epoch");
  const double scale = line.number("loss_scale");
  const ExponentHistogram counts = histogram_in(line);
  if (!line.wrong.empty()) return line.wrong;
  StepHealth& to = find_or_add(health.of_run[run], step, &StepHealth::step);
  to.epoch = epoch;
  if (scale != 1) to.loss_scale = scale;
  LayerHealth& of_layer = find_or_add(to.layers, layer, &LayerHealth::name);
  (kind == "weights" ? of_layer.weight_gradients : of_layer.activation_gradients) = counts;
  if (const auto* ratio = report::find_metric<double>(fields, "update_ratio"))
    of_layer.update_ratio = *ratio;
  if (const auto* share = report::find_metric<double>(fields, "unchanged"))
    of_layer.unchanged = *share;
  return "";
}

// Steps that were skipped, by run.
std::set<std::pair<std::string, int64_t>> skipped_steps(const report::Metrics& metrics) {
  std::set<std::pair<std::string, int64_t>> skipped;
  for (const auto& [number, line] : metrics.lines) {
    const auto* run = report::find_metric<std::string>(line, "run");
    const auto* step = report::find_metric<int64_t>(line, "step");
    const auto* is_skipped = report::find_metric<bool>(line, "skipped");
    if (run && step && is_skipped && *is_skipped) skipped.insert({*run, *step});
  }
  return skipped;
}

}  // namespace

HealthLines read_health(const std::filesystem::path& metrics) {
  const report::Metrics read = report::read_metrics(metrics);
  HealthLines health{.left_out = read.left_out};
  for (const auto& [number, line] : read.lines) {
    if (!report::find_metric<std::string>(line, "gradients")) continue;
    const std::string wrong = read_line(health, line);
    if (!wrong.empty())
      health.left_out.push_back(fmt::format("line {} has no {}, or a wrong one", number, wrong));
  }
  const auto skipped = skipped_steps(read);
  for (auto& [run, steps] : health.of_run)
    for (StepHealth& step : steps) step.skipped = skipped.contains({run, step.step});
  return health;
}

void add_earlier_health(recipes::Comparison& comparison, const std::filesystem::path& metrics) {
  HealthLines read = read_health(metrics);
  for (recipes::RunResult& run : comparison.runs) {
    std::vector<StepHealth>& earlier = read.of_run[run.spec.label];
    const int64_t first =
        run.health.empty() ? std::numeric_limits<int64_t>::max() : run.health.front().step;
    std::erase_if(earlier, [&](const StepHealth& step) { return step.step >= first; });
    run.health.insert(run.health.begin(), earlier.begin(), earlier.end());
  }
  if (read.left_out.empty()) return;
  std::string text;
  constexpr std::size_t kMost = 5;
  for (std::size_t i = 0; i < std::min(kMost, read.left_out.size()); ++i)
    text += (i == 0 ? "" : "; ") + read.left_out[i];
  if (read.left_out.size() > kMost) text += fmt::format("; {} more", read.left_out.size() - kMost);
  comparison.notes.push_back("Left out of what was read from metrics.jsonl: " + text + ".");
}

report::Histogram over_exponents(const ExponentHistogram& counts) {
  report::Histogram histogram;
  const Bins bins = bins_of(counts);
  for (int e = bins.low; e <= bins.high; ++e) {
    const auto times = static_cast<double>(count_of(counts, e));
    histogram.limits.push_back(e + 1);
    histogram.counts.push_back(times);
    histogram.count += times;
    histogram.sum += times * e;
    histogram.sum_squares += times * e * e;
  }
  if (!bins.empty()) {
    histogram.min = bins.low;
    histogram.max = bins.high + 1;
  }
  return histogram;
}

void write_health(report::EventFile& file, const StepHealth& step) {
  const double scale = step.loss_scale.value_or(1);
  const auto write = [&](const std::string& kind, const std::string& of,
                         const ExponentHistogram& scaled) {
    const report::Histogram histogram = over_exponents(monitor::unscaled(scaled, scale));
    if (histogram.count > 0)
      file.histogram("log2_gradients_" + kind + "/" + of, step.step, histogram);
  };
  for (const LayerHealth& layer : step.layers) {
    write("weights", layer.name, layer.weight_gradients);
    write("activations", layer.name, layer.activation_gradients);
    if (layer.update_ratio)
      file.scalar("update_ratio/" + layer.name, step.step, *layer.update_ratio);
    if (layer.unchanged) file.scalar("unchanged/" + layer.name, step.step, *layer.unchanged);
  }
  const auto shares = [&](const std::string& kind, const ExponentHistogram& scaled,
                          ExponentHistogram LayerHealth::*gradients) {
    write(kind, "all", scaled);
    if (scaled.elements() == 0) return;
    const FlushedShares of = monitor::flushed_shares(scaled, scale);
    file.scalar("gradients_" + kind + "/zero", step.step, of.zero);
    file.scalar("gradients_" + kind + "/flushed_unscaled", step.step, of.flushed_unscaled);
    file.scalar("gradients_" + kind + "/flushed_scaled", step.step, of.flushed_scaled);
    file.scalar("gradients_" + kind + "/overflowed", step.step, of.overflowed_scaled);
    const monitor::NarrowShares narrow = monitor::narrow_shares(step, gradients);
    file.scalar("gradients_" + kind + "/flushed_e4m3", step.step, narrow.e4m3);
    file.scalar("gradients_" + kind + "/flushed_e5m2", step.step, narrow.e5m2);
    file.scalar("gradients_" + kind + "/flushed_e2m1", step.step, narrow.e2m1);
  };
  shares("weights", step.weight_gradients(), &LayerHealth::weight_gradients);
  shares("activations", step.activation_gradients(), &LayerHealth::activation_gradients);
}

std::optional<report::Section> health_section(const recipes::Comparison& comparison) {
  std::vector<report::Block> charts, tables;
  for (const recipes::RunResult& run : comparison.runs) add_blocks(run, charts, tables);
  if (charts.empty()) return std::nullopt;
  report::Section section{"Gradients", std::move(charts)};
  section.blocks.emplace_back(report::Paragraph{fmt::format(
      "One bar a power of two of the gradients' magnitude, and one for exact zeros, of steps 1, "
      "{}, {}, ... that were taken (Micikevicius et al. 2018, figure 3). fp16 holds 2^-14 to 65504 "
      "with all digits and down to 2^-24 with fewer; below 2^-25 it rounds to zero.",
      1 + comparison.config.monitor, 1 + 2 * comparison.config.monitor)});
  for (report::Block& table : tables) section.blocks.push_back(std::move(table));
  return section;
}

}  // namespace demi::results
