#include "cli/bench.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "lab/report/format.h"

namespace demi::cli {

nlohmann::ordered_json timing_json(const bench::RecipeTiming& timing) {
  nlohmann::ordered_json json{
      {"precision", timing.precision}, {"ms", timing.ms},
      {"min_ms", timing.min_ms},       {"max_ms", timing.max_ms},
      {"loss", timing.loss},           {"skipped_steps", timing.skipped_steps},
      {"speedup", timing.speedup}};
  if (timing.host_us) json["host_us"] = *timing.host_us;
  if (timing.of_device) {
    json["kernels"] = timing.of_device->kernels;
    json["launches"] = timing.of_device->launches;
    json["busy_ms"] = timing.of_device->busy_ms;
    json["idle_share"] = timing.of_device->idle_share;
  }
  return json;
}

void add_device_columns(const bench::RecipeBenchResult& result, report::Table& table) {
  const auto has_host = [](const bench::RecipeTiming& run) { return run.host_us.has_value(); };
  const auto has_work = [](const bench::RecipeTiming& run) { return run.of_device.has_value(); };
  if (std::ranges::any_of(result.runs, has_host)) {
    table.columns.push_back({.name = "host", .unit = "µs a step"});
    for (std::size_t i = 0; i < result.runs.size(); ++i) {
      const auto us = result.runs[i].host_us;
      table.rows[i].push_back(us ? report::format_fixed(*us, 0) : "");
    }
    table.notes.emplace_back(
        "Host: the least time from the beginning of a step to that of the next one, without a wait "
        "for the device.");
  }
  if (std::ranges::any_of(result.runs, has_work)) {
    for (const char* name : {"kernels", "launches", "device idle"})
      table.columns.push_back({.name = name});
    for (std::size_t i = 0; i < result.runs.size(); ++i)
      if (const auto& work = result.runs[i].of_device)
        for (std::string cell :
             {report::format_number(work->kernels), report::format_number(work->launches),
              report::format_share(work->idle_share)})
          table.rows[i].push_back(std::move(cell));
    table.notes.emplace_back(
        "Kernels and launches, of which a graph is one, are those of a step with a profiler.");
    table.notes.emplace_back(
        "Device idle: the share of the median in which the device had no work.");
  }
  for (const std::string& missing : result.missing) table.notes.push_back(missing);
}

std::string where_of(const recipes::Machine& machine) {
  return "On " + recipes::describe(machine) + ".";
}

void show_measurement(const Output& output, report::Table table, nlohmann::ordered_json json,
                      const std::string& again) {
  table.notes.push_back("again: " + again);
  json["again"] = again;
  output.show({std::move(table)}, json);
}

void add_round_options(CLI::App& command, int& warmup, int& steps, int& rounds) {
  command
      .add_option("--warmup", warmup, "Steps of each run before timing; their losses are checked")
      ->capture_default_str();
  command.add_option("--steps", steps, "Timed steps of each run in a round")->capture_default_str();
  command
      .add_option("--rounds", rounds,
                  "Timed rounds, in which the runs take turns; the median is reported")
      ->capture_default_str();
}

}  // namespace demi::cli
