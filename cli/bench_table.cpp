#include "cli/bench_table.h"

#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>

namespace demi::cli {

nlohmann::ordered_json json_of(const bench::RecipeTiming& timing) {
  return {{"precision", timing.precision}, {"ms", timing.ms},
          {"min_ms", timing.min_ms},       {"max_ms", timing.max_ms},
          {"loss", timing.loss},           {"skipped_steps", timing.skipped_steps},
          {"speedup", timing.speedup}};
}

std::string where_of(const train::Machine& machine) {
  return "On " + train::describe(machine) + ".";
}

void note_slow(const std::vector<train::RunSpec>& runs, c10::Device device) {
  std::vector<train::Precision> used;
  if (runs.empty()) used.push_back(train::mixed_precision_of(device.type()));
  for (const train::RunSpec& run : runs) used.push_back(run.precision);
  for (const train::Precision& precision : used) {
    const std::string warning = train::slow_precision_warning(precision, device);
    if (!warning.empty()) std::cerr << "note: " << warning << "\n";
  }
}

void add_bench_options(CLI::App& command, int& warmup, int& steps, int& rounds, bool& json) {
  command.add_option("--warmup", warmup, "Steps of each run before, whose losses are checked")
      ->capture_default_str();
  command.add_option("--steps", steps, "Steps of each run in a round")->capture_default_str();
  command.add_option("--rounds", rounds, "Rounds, in which the runs take turns")
      ->capture_default_str();
  command.add_flag("--json", json, "One JSON object on stdout instead of the table");
}

}  // namespace demi::cli
