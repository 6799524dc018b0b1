#include "lab/profiler/profile_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "lab/report/format.h"
#include "lab/results/machine_json.h"

namespace demi::profiler {
namespace {

using nlohmann::ordered_json;
using report::format_fixed;
using report::format_share;

constexpr std::size_t kShownOps = 14;  // rows of a table
constexpr std::size_t kShownKernels = 16;
constexpr std::size_t kBarOps = 5;        // colours without the rest's
constexpr std::size_t kNameColumns = 48;  // of a kernel's name

std::string ms(double value) { return format_fixed(value, value < 10 ? 3 : 2); }

std::string calls(double value) {
  const bool is_whole = value == static_cast<double>(static_cast<std::int64_t>(value));
  return format_fixed(value, is_whole ? 0 : 1);
}

std::string step_line(const Profile& p) {
  return fmt::format("{} step{} of {} at batch size {}, and as many without the profiler", p.steps,
                     p.steps == 1 ? "" : "s", p.config.model, p.config.batch_size);
}

// "+2.5 %", without "-0.0 %".
std::string overhead_of(const RunProfile& run) {
  const double percent = 100 * run.overhead();
  return fmt::format("{:+.1f} %", std::fabs(percent) < 0.05 ? 0.0 : percent);
}

std::string overhead_line(const RunProfile& run) {
  return fmt::format("{}: a step takes {} ms, with the profiler {} ms ({}).", run.precision,
                     ms(run.plain_ms), ms(run.recorded_ms), overhead_of(run));
}

// Why times of ops are too long, if they are.
std::string disturbance_of(const RunProfile& run) {
  constexpr double kDisturbed = 0.1, kManyFaults = 1000;
  if (run.overhead() < kDisturbed) return "";
  const bool is_memory = run.recorded_faults > 2 * run.plain_faults + kManyFaults;
  return fmt::format(
      "{}: the profiler disturbs what it measures: its ops take longer here than in training{}. "
      "Compare times of ops within this run alone, and steps by the time without the profiler.",
      run.precision,
      is_memory ? fmt::format(", those that fill large tensors above all, since {} pages of memory "
                              "a step were touched for the first time, and {} without it",
                              report::format_count(static_cast<int64_t>(run.recorded_faults)),
                              report::format_count(static_cast<int64_t>(run.plain_faults)))
                : "");
}

report::Table run_table(const Profile& p) {
  report::Table table{.title = "profile of " + p.recipe + ": " + recipes::title(p.machine)};
  const bool is_device =
      std::ranges::any_of(p.runs, [](const RunProfile& run) { return run.summary.is_device; });
  table.columns = {{.name = "precision", .align = report::Align::kLeft},
                   {.name = "step", .unit = "ms"},
                   {.name = "speedup"},
                   {.name = "16 bits, of the ops' time"},
                   {.name = "16 bits, of the FLOPs"},
                   {.name = "casts"},
                   {.name = "cast time", .unit = "ms"}};
  if (is_device) table.columns.push_back({.name = "tensor cores, of the kernels' time"});
  table.columns.push_back({.name = is_device ? "device idle" : "outside ops"});
  for (const RunProfile& run : p.runs) {
    const Summary& s = run.summary;
    std::vector<std::string> row{
        run.precision,
        ms(run.plain_ms),
        run.plain_ms > 0 ? report::format_factor(p.runs.front().plain_ms / run.plain_ms) : "",
        format_share(s.low_time_share),
        s.gflop > 0 ? format_share(s.low_flops_share) : "",
        calls(s.casts),
        ms(s.cast_ms)};
    if (is_device) row.push_back(format_share(s.tensor_core_share));
    row.push_back(format_share(s.idle_share));
    table.rows.push_back(std::move(row));
  }
  table.notes = {step_line(p) + "; numbers are those of a step.", recipes::describe(p.machine)};
  for (const RunProfile& run : p.runs) {
    table.notes.push_back(overhead_line(run));
    if (std::string text = disturbance_of(run); !text.empty())
      table.notes.push_back(std::move(text));
  }
  for (const RunProfile& run : p.runs)
    if (run.graph_bytes > 0)
      table.notes.push_back(
          fmt::format("{}: its graphs hold {} beside the memory of plain steps.", run.precision,
                      report::format_bytes(static_cast<double>(run.graph_bytes))));
  std::set<std::string> said;
  for (const RunProfile& run : p.runs)
    for (const std::string& missing : run.missing)
      if (said.insert(missing).second) table.notes.push_back(missing);
  if (!is_device)
    table.notes.emplace_back("Tensor cores, and the idle share of a device, are a GPU's.");
  for (const RunProfile& run : p.runs)
    for (const Sync& sync : run.summary.syncs)
      table.notes.push_back(fmt::format("{}: the host reads a number {} times a step, in {}.",
                                        run.precision, calls(sync.calls), sync.place));
  return table;
}

report::Table phase_table(const Profile& p) {
  report::Table table{.title = "phases of a step"};
  table.columns = {{.name = "phase", .align = report::Align::kLeft}};
  for (const RunProfile& run : p.runs)
    table.columns.push_back({.name = run.precision, .unit = "ms"});
  const auto& phases = p.runs.front().summary.phase_ms;
  for (std::size_t i = 0; i < phases.size(); ++i) {
    table.rows.push_back({phases[i].first});
    for (const RunProfile& run : p.runs)
      table.rows.back().push_back(ms(run.summary.phase_ms[i].second));
  }
  table.notes = {p.runs.front().summary.is_device
                     ? "The host's time, while recorded: the device works behind its back."
                     : "While recorded. Without clipping, unscaling is a part of the step."};
  return table;
}

// An op in one run, its dtypes together. Casts are an op of their own.
struct OpRow {
  double ms = 0, calls = 0;
  std::set<std::string> dtypes;  // by name: by time they would change places from run to run
};

std::string row_name(const OpUse& use) {
  std::string name = use.name;
  if (name.starts_with("aten::")) name.erase(0, 6);
  return use.is_cast ? name + " (casts)" : name;
}

using OpRows = std::map<std::string, std::vector<OpRow>>;  // one a run

OpRows rows_of(const Profile& p) {
  OpRows rows;
  for (std::size_t run = 0; run < p.runs.size(); ++run)
    for (const OpUse& use : p.runs[run].summary.ops) {
      auto& row = rows.try_emplace(row_name(use), p.runs.size()).first->second[run];
      row.ms += use.ms;
      row.calls += use.calls;
      if (!use.dtype.empty() && use.ms > 0) row.dtypes.insert(use.dtype);
    }
  return rows;
}

// Names of the rows, those with the longest time in a run first.
std::vector<std::string> in_order(const OpRows& rows) {
  const auto longest = [&](const std::string& name) {
    double most = 0;
    for (const OpRow& row : rows.at(name)) most = std::max(most, row.ms);
    return most;
  };
  std::vector<std::string> names;
  for (const auto& [name, row] : rows) names.push_back(name);
  std::ranges::stable_sort(names, std::greater(), longest);
  return names;
}

std::string joined(const std::set<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

report::Table op_table(const Profile& p) {
  report::Table table{.title = "ops, the longest first"};
  table.columns = {{.name = "op", .align = report::Align::kLeft}};
  for (const RunProfile& run : p.runs) {
    table.columns.push_back({.name = run.precision, .unit = "ms"});
    table.columns.push_back({.name = "calls"});
    table.columns.push_back({.name = "in", .align = report::Align::kLeft});
  }
  const OpRows rows = rows_of(p);
  const std::vector<std::string> names = in_order(rows);
  std::vector<OpRow> rest(p.runs.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto& row = rows.at(names[i]);
    if (i < kShownOps) table.rows.push_back({names[i]});
    for (std::size_t run = 0; run < row.size(); ++run) {
      rest[run].ms += i < kShownOps ? 0 : row[run].ms;
      rest[run].calls += i < kShownOps ? 0 : row[run].calls;
      if (i >= kShownOps) continue;
      const bool is_there = row[run].calls > 0 || row[run].ms > 0;
      for (const std::string& cell :
           {is_there ? ms(row[run].ms) : "", is_there ? calls(row[run].calls) : "",
            joined(row[run].dtypes)})
        table.rows.back().push_back(cell);
    }
  }
  if (names.size() > kShownOps) {
    table.rows.push_back({fmt::format("{} others", names.size() - kShownOps)});
    for (const OpRow& row : rest)
      for (const std::string& cell : {ms(row.ms), calls(row.calls), std::string("")})
        table.rows.back().push_back(cell);
  }
  table.notes = {p.runs.front().summary.is_device
                     ? "Time of the op's own kernels on the device."
                     : "Time in the op itself, without the ops that it calls."};
  return table;
}

std::string shortened(const std::string& name) {
  if (name.size() <= kNameColumns) return name;
  return fmt::format("{}...", name.substr(0, kNameColumns - 3));
}

report::Table kernel_table(const Profile& p) {
  report::Table table{.title = "kernels that ran"};
  table.columns = {{.name = "op", .align = report::Align::kLeft},
                   {.name = "precision", .align = report::Align::kLeft},
                   {.name = "in", .align = report::Align::kLeft},
                   {.name = "kernel", .align = report::Align::kLeft}};
  const bool is_device = p.runs.front().summary.is_device;
  if (is_device) table.columns.push_back({.name = "tensor cores", .align = report::Align::kLeft});
  for (const std::string& name : in_order(rows_of(p)))
    for (const RunProfile& run : p.runs)
      for (const OpUse& use : run.summary.ops) {
        if (row_name(use) != name || use.kernels.empty() || table.rows.size() >= kShownKernels)
          continue;
        std::string kernel = shortened(use.kernels.front());
        if (use.kernels.size() > 1) kernel += fmt::format(" and {} more", use.kernels.size() - 1);
        table.rows.push_back({name, run.precision, use.dtype, std::move(kernel)});
        if (is_device) table.rows.back().emplace_back(use.tensor_cores ? "yes" : "no");
      }
  table.notes = {
      is_device ? "Tensor cores by the kernels' names."
                : "By the logs of oneDNN and MKL; ops without a row run LibTorch's own kernels, or "
                  "demi's."};
  return table;
}

report::StackedBars phase_bars(const Profile& p) {
  report::StackedBars bars{.title = "Phases of a step", .unit = "ms"};
  const auto& phases = p.runs.front().summary.phase_ms;
  std::vector<std::size_t> shown;
  for (std::size_t i = 0; i < phases.size(); ++i)
    if (std::ranges::any_of(p.runs,
                            [&](const RunProfile& r) { return r.summary.phase_ms[i].second > 0; }))
      shown.push_back(i);
  for (const std::size_t i : shown) bars.parts.push_back(phases[i].first);
  for (const RunProfile& run : p.runs) {
    bars.bars.push_back({.name = run.precision});
    for (const std::size_t i : shown)
      bars.bars.back().values.push_back(run.summary.phase_ms[i].second);
  }
  return bars;
}

report::StackedBars op_bars(const Profile& p) {
  report::StackedBars bars{.title = "Ops of a step", .unit = "ms"};
  const OpRows rows = rows_of(p);
  const std::vector<std::string> names = in_order(rows);
  const std::size_t shown = std::min(names.size(), kBarOps);
  bars.parts.assign(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown));
  bars.parts.emplace_back("others");
  for (std::size_t run = 0; run < p.runs.size(); ++run) {
    bars.bars.push_back({.name = p.runs[run].precision});
    double others = 0;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const double one = rows.at(names[i])[run].ms;
      if (i < shown)
        bars.bars.back().values.push_back(one);
      else
        others += one;
    }
    bars.bars.back().values.push_back(others);
  }
  return bars;
}

report::StackedBars dtype_bars(const Profile& p) {
  report::StackedBars bars{.title = "Ops of a step by dtype", .unit = "ms"};
  bars.parts = {"16 bits", "casts", "other dtypes"};
  for (const RunProfile& run : p.runs) {
    const Summary& s = run.summary;
    const double low = s.low_time_share * s.ops_ms;
    bars.bars.push_back({.name = run.precision,
                         .values = {low, s.cast_ms, std::max(s.ops_ms - low - s.cast_ms, 0.0)}});
  }
  return bars;
}

report::Highlights highlights(const Profile& p) {
  const RunProfile& first = p.runs.front();
  const RunProfile& last = p.runs.back();
  report::Highlights result;
  if (p.runs.size() > 1 && last.plain_ms > 0)
    result.figures.push_back({report::format_factor(first.plain_ms / last.plain_ms), "speed",
                              last.precision + " against " + first.precision});
  else
    result.figures.push_back({ms(last.plain_ms) + " ms", "a step", last.precision});
  result.figures.push_back(
      {format_share(last.summary.low_time_share), "of the ops' time in 16 bits", last.precision});
  result.figures.push_back({calls(last.summary.casts), "casts a step", last.precision});
  result.figures.push_back({overhead_of(last), "the profiler's overhead", last.precision});
  return result;
}

ordered_json json_of(const OpUse& use) {
  return {{"name", use.name},    {"dtype", use.dtype},     {"calls", use.calls},
          {"ms", use.ms},        {"gflop", use.gflop},     {"low", use.is_low},
          {"cast", use.is_cast}, {"kernels", use.kernels}, {"tensor_cores", use.tensor_cores}};
}

ordered_json json_of(const RunProfile& run) {
  const Summary& s = run.summary;
  ordered_json json{
      {"precision", run.precision},      {"step_ms", run.plain_ms},
      {"recorded_ms", run.recorded_ms},  {"overhead", run.overhead()},
      {"page_faults", run.plain_faults}, {"page_faults_recorded", run.recorded_faults}};
  for (const auto& [phase, phase_ms] : s.phase_ms) json["phases"][phase] = phase_ms;
  json["ops_ms"] = s.ops_ms;
  json["low_time_share"] = s.low_time_share;
  json["low_flops_share"] = s.gflop > 0 ? ordered_json(s.low_flops_share) : ordered_json();
  json["gflop"] = s.gflop;
  json["casts"] = s.casts;
  json["cast_ms"] = s.cast_ms;
  json["tensor_core_share"] = s.is_device ? ordered_json(s.tensor_core_share) : ordered_json();
  json["idle_share"] = s.idle_share;
  if (s.is_device) json["busy_ms"] = s.busy_ms;
  json["kernels"] = s.kernels;
  if (s.is_device) json["launches"] = s.launches;
  json["short_share"] = s.short_share;
  json["short_time_share"] = s.short_time_share;
  if (run.graph_bytes > 0) json["graph_bytes"] = run.graph_bytes;
  json["syncs"] = json["ops"] = ordered_json::array();
  for (const Sync& sync : s.syncs)
    json["syncs"].push_back({{"place", sync.place}, {"calls", sync.calls}});
  for (const OpUse& use : s.ops) json["ops"].push_back(json_of(use));
  json["missing"] = run.missing;
  json["trace"] = run.trace.empty() ? ordered_json() : ordered_json(run.trace.string());
  return json;
}

}  // namespace

std::vector<report::Table> to_tables(const Profile& profile) {
  if (profile.runs.empty()) return {};
  std::vector<report::Table> tables{run_table(profile), phase_table(profile), op_table(profile)};
  report::Table kernels = kernel_table(profile);
  if (!kernels.rows.empty()) tables.push_back(std::move(kernels));
  return tables;
}

report::Page to_page(const Profile& profile, const std::string& command) {
  report::Page page{.title = "demi profile " + profile.recipe, .subtitle = step_line(profile)};
  if (profile.runs.empty()) return page;
  std::vector<report::Table> tables = to_tables(profile);
  page.sections.push_back({"", {highlights(profile), std::move(tables[0])}});
  page.sections.push_back(
      {"Where the time goes", {phase_bars(profile), op_bars(profile), dtype_bars(profile)}});
  page.sections.push_back({"Phases", {std::move(tables[1])}});
  page.sections.push_back({"Ops", {std::move(tables[2])}});
  if (tables.size() > 3) page.sections.push_back({"Kernels", {std::move(tables[3])}});
  report::Facts traces{"", {}};
  for (const RunProfile& run : profile.runs)
    if (!run.trace.empty())
      traces.rows.emplace_back(run.precision, run.trace.filename().string() +
                                                  ", for ui.perfetto.dev or chrome://tracing");
  if (!traces.rows.empty()) page.sections.push_back({"Traces", {std::move(traces)}});
  page.sections.push_back({"Again", {report::Code{command}}});
  return page;
}

ordered_json json_of(const Profile& profile) {
  ordered_json json{{"recipe", profile.recipe},
                    {"model", profile.config.model},
                    {"batch_size", profile.config.batch_size},
                    {"steps", profile.steps},
                    {"machine", results::json_of(profile.machine)}};
  json["runs"] = ordered_json::array();
  for (const RunProfile& run : profile.runs) json["runs"].push_back(json_of(run));
  return json;
}

}  // namespace demi::profiler
