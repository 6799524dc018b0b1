#include "cli/bench.h"

#include <nlohmann/json.hpp>

namespace demi::cli {

nlohmann::ordered_json timing_json(const bench::RecipeTiming& timing) {
  return {{"precision", timing.precision}, {"ms", timing.ms},
          {"min_ms", timing.min_ms},       {"max_ms", timing.max_ms},
          {"loss", timing.loss},           {"skipped_steps", timing.skipped_steps},
          {"speedup", timing.speedup}};
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
