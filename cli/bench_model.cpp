#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/status_line.h"
#include "demi/tensor/device.h"
#include "lab/bench/model.h"
#include "lab/recipes/compare.h"
#include "lab/report/format.h"
#include "lab/results/machine_json.h"
#include "lab/shell_word.h"

namespace demi::cli {
namespace {

struct ModelArguments {
  std::string runs, device = "auto";
  bench::ModelBenchOptions bench;
  Output output;
};

std::string model_again(const ModelArguments& a) {
  std::string line = fmt::format(
      "demi bench model --width {} --batch-size {} --layers {} --device {} --warmup {} --steps {} "
      "--rounds {}",
      fmt::join(a.bench.widths, ","), a.bench.batch_size, a.bench.layers, a.device, a.bench.warmup,
      a.bench.steps, a.bench.rounds);
  return a.runs.empty() ? line : line + " --runs " + lab::shell_word(a.runs);
}

nlohmann::ordered_json model_json(const ModelArguments& a, const bench::ModelBenchResult& result) {
  nlohmann::ordered_json json{{"model", "mlp"},
                              {"layers", a.bench.layers},
                              {"batch_size", a.bench.batch_size},
                              {"mixed", result.rows.front().mixed().precision}};
  json["rows"] = nlohmann::ordered_json::array();
  for (const bench::ModelBenchRow& row : result.rows) {
    nlohmann::ordered_json one{{"width", row.width},
                               {"parameters", row.result.parameters},
                               {"fp32_ms", row.fp32().ms},
                               {"mixed_ms", row.mixed().ms},
                               {"speedup", row.mixed().speedup}};
    for (const bench::RecipeTiming& run : row.result.runs) one["runs"].push_back(timing_json(run));
    json["rows"].push_back(one);
  }
  json["gain_from_width"] = result.gain_from_width ? nlohmann::ordered_json(*result.gain_from_width)
                                                   : nlohmann::ordered_json();
  json["warmup"] = a.bench.warmup;
  json["steps"] = a.bench.steps;
  json["rounds"] = a.bench.rounds;
  json["machine"] = results::json_of(result.rows.front().result.machine);
  return json;
}

// "12.34 (12.11 to 13.02)"
std::string cell_of(const bench::RecipeTiming& timing) {
  return fmt::format("{:.3f} ({:.3f} to {:.3f})", timing.ms, timing.min_ms, timing.max_ms);
}

report::Table model_table(const ModelArguments& a, const bench::ModelBenchResult& result) {
  const std::string mixed = result.rows.front().mixed().precision;
  report::Table table{.title = fmt::format("perceptron of {} layers, batch size {}, by width",
                                           a.bench.layers, a.bench.batch_size)};
  table.columns = {{.name = "width"},
                   {.name = "parameters"},
                   {.name = "fp32", .unit = "ms a step"},
                   {.name = mixed, .unit = "ms a step"},
                   {.name = "speedup"}};
  for (const bench::ModelBenchRow& row : result.rows)
    table.rows.push_back({std::to_string(row.width), report::format_count(row.result.parameters),
                          cell_of(row.fp32()), cell_of(row.mixed()),
                          report::format_factor(row.mixed().speedup)});
  table.notes = {
      result.gain_from_width
          ? fmt::format("{} gains time from width {} on.", mixed, *result.gain_from_width)
          : fmt::format("{} gains no time at the largest of these widths.", mixed),
      fmt::format("Median, least and most of {} rounds of {} steps, after {} that were checked.",
                  a.bench.rounds, a.bench.steps, a.bench.warmup),
      where_of(result.rows.front().result.machine)};
  return table;
}

void bench_model(ModelArguments& a) {
  if (!a.runs.empty()) a.bench.runs = settings::parse_runs(a.runs);
  const c10::Device device = pick_device(a.device);
  note_slow_precisions(a.bench.runs, device);
  a.bench.on_part = PartProgress();
  const bench::ModelBenchResult result = bench::bench_model(a.bench, device);
  show_measurement(a.output, model_table(a, result), model_json(a, result), model_again(a));
}

}  // namespace

void add_bench_model(CLI::App& bench) {
  auto* command = bench.add_subcommand(
      "model", "From which width on mixed precision gains time, on a perceptron");
  const auto a = std::make_shared<ModelArguments>();
  command->add_option("--width", a->bench.widths, "Widths of the perceptron's layers, by comma")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--batch-size", a->bench.batch_size, "Rows per step")->capture_default_str();
  command->add_option("--layers", a->bench.layers, "Number of linear layers")
      ->capture_default_str();
  command->add_option("--runs", a->runs,
                      "Runs to compare with fp32, by comma [bf16 on a CPU, fp16 on CUDA]");
  add_device_option(*command, a->device);
  add_round_options(*command, a->bench.warmup, a->bench.steps, a->bench.rounds);
  a->output.add_to(*command);
  command->callback([a] { bench_model(*a); });
}

}  // namespace demi::cli
