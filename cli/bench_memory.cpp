#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/settings.h"
#include "cli/status_line.h"
#include "demi/core/error.h"
#include "demi/tensor/device.h"
#include "lab/bench/memory.h"
#include "lab/report/format.h"
#include "lab/results/machine_json.h"
#include "lab/settings/config_source.h"
#include "lab/settings/effects.h"
#include "lab/settings/model_settings.h"
#include "lab/settings/recipe.h"
#include "lab/shell_word.h"

namespace demi::cli {
namespace {

// Settings of a recipe that decide what a step holds: its model's own, and these.
bool is_of_step(const settings::Setting& setting) {
  return setting.name == "optimizer" || setting.name == "accumulate" ||
         setting.name == "recompute" || settings::is_of_models(setting.name);
}

struct MemoryArguments {
  bench::MemoryBenchOptions bench;
  std::string model = "fashion-cnn", runs, device = "auto";
  SettingOptions settings;
  Output output;
};

// A recipe, or the first one that trains the model of that name.
const settings::Recipe& recipe_or_model(const std::string& name) {
  const auto all = settings::recipes();
  if (std::ranges::find(all, name, &settings::Recipe::name) == all.end())
    for (const settings::Recipe& recipe : all)
      if (recipe.config.model == name) return recipe;
  return settings::find_recipe(name);
}

std::string memory_again(const MemoryArguments& a, const bench::MemoryBenchResult& result) {
  std::string line = fmt::format("demi bench memory --model {} --input {}",
                                 lab::shell_word(a.model), fmt::join(result.input, ","));
  if (!a.bench.batch_sizes.empty())
    line += fmt::format(" --batch-size {}", fmt::join(a.bench.batch_sizes, ","));
  if (a.bench.forward) line += " --forward";
  if (a.bench.whole_logits) line += " --whole-logits";
  if (!a.runs.empty()) line += " --runs " + lab::shell_word(a.runs);
  line += a.settings.typed();
  if (a.bench.classes > 0) line += fmt::format(" --classes {}", a.bench.classes);
  return line + fmt::format(" --vocabulary {} --device {}", a.bench.vocabulary, a.device);
}

nlohmann::ordered_json kinds_json(const bench::MemoryByKind& bytes) {
  return {{"parameters", bytes.parameters},
          {"copies", bytes.copies},
          {"gradients", bytes.gradients},
          {"optimizer", bytes.optimizer},
          {"activations", bytes.activations},
          {"other", bytes.other},
          {"total", bytes.total()}};
}

nlohmann::ordered_json memory_json(const MemoryArguments& a,
                                   const bench::MemoryBenchResult& result) {
  nlohmann::ordered_json json{
      {"model", a.bench.config.model},
      {"recipe", a.model},
      {"input", result.input},
      {"forward", a.bench.forward},
      {"recompute", a.bench.config.recompute},
      {"whole_logits", a.bench.whole_logits},
      {"accumulate", a.bench.forward ? 1 : settings::batches_of_step(a.bench.config)},
      {"parameters", result.parameters}};
  json["runs"] = nlohmann::ordered_json::array();
  for (const bench::MemoryRow& row : result.rows)
    json["runs"].push_back({{"precision", row.precision},
                            {"batch_size", row.batch_size},
                            {"peak_bytes", row.peak_bytes},
                            {"predicted_bytes", row.predicted_bytes},
                            {"reduction", row.reduction},
                            {"reserved_bytes", row.reserved_bytes},
                            {"peak", kinds_json(row.peak)},
                            {"predicted", kinds_json(row.predicted)},
                            {"current", kinds_json(row.current)}});
  json["machine"] = results::json_of(result.machine);
  return json;
}

// The unit that gives the table's greatest figure one to three digits before the point.
report::ByteUnit unit_of(const bench::MemoryBenchResult& result) {
  int64_t largest = 0;
  for (const bench::MemoryRow& row : result.rows)
    largest = std::max({largest, row.peak_bytes, row.predicted_bytes});
  return report::byte_unit(static_cast<double>(largest));
}

// A note on the first run that takes more than FP32 for its copies of the weights; "" if there is
// none.
std::string why_more(const bench::MemoryBenchResult& result) {
  const auto more = std::ranges::find_if(result.rows, [](const bench::MemoryRow& row) {
    const auto peak = static_cast<double>(row.peak_bytes);
    const double beyond_fp32 = peak - peak / (1 - row.reduction);
    return beyond_fp32 > 0 && 2 * static_cast<double>(row.peak.copies) > beyond_fp32;
  });
  if (more == result.rows.end()) return "";
  return fmt::format(
      "{} takes more than fp32 with a batch of {}: mixed precision keeps 16-bit copies beside the "
      "FP32 weights, and saves in activations, which are few here. A 16-bit model (fp16-true, "
      "bf16-true) has 16-bit weights alone.",
      more->precision, more->batch_size);
}

report::Table memory_table(const MemoryArguments& a, const bench::MemoryBenchResult& result) {
  report::Table table{
      .title = fmt::format("memory of tensors: {} of {}, input {}, {} parameters",
                           a.bench.forward ? "a forward pass" : "training steps", a.model,
                           fmt::join(result.input.begin() + 1, result.input.end(), " x "),
                           report::format_count(result.parameters))};
  const report::ByteUnit unit = unit_of(result);
  const auto in_unit = [&](int64_t bytes) {
    return report::format_fixed(static_cast<double>(bytes) / unit.bytes, unit.bytes > 1 ? 2 : 0);
  };
  table.columns = {{.name = "batch"}, {.name = "precision", .align = report::Align::kLeft}};
  for (const char* kind : {"parameters", "copies", "gradients", "optimizer", "activations", "other",
                           "peak", "predicted", "after"})
    table.columns.push_back({.name = kind, .unit = unit.name});
  table.columns.push_back({.name = "reduction", .unit = "%"});
  for (const bench::MemoryRow& row : result.rows) {
    std::vector<std::string> cells{report::format_count(row.batch_size), row.precision};
    for (const int64_t bytes : {row.peak.parameters, row.peak.copies, row.peak.gradients,
                                row.peak.optimizer, row.peak.activations, row.peak.other,
                                row.peak_bytes, row.predicted_bytes, row.current.total()})
      cells.push_back(in_unit(bytes));
    cells.push_back(report::format_fixed(100 * row.reduction, 1));
    table.rows.push_back(std::move(cells));
  }
  table.notes = {
      "Units are powers of 1000. The kinds are those at the moment of the measured peak; `after` "
      "is what is held afterwards. The reduction is the peak's, against fp32.",
      "Predicted block by block from two other batches, of at most 32 and 64 examples."};
  if (const std::string why = why_more(result); !why.empty()) table.notes.push_back(why);
  table.notes.push_back(where_of(result.machine));
  return table;
}

void bench_memory(MemoryArguments& a) {
  const c10::Device device = pick_device(a.device);
  a.bench.config = settings::config_of(recipe_or_model(a.model), {.on_gpu = device.is_cuda()});
  const std::vector<settings::Assignment> given = a.settings.typed_ones();
  for (const auto& [name, why] :
       {std::pair("accumulate", "a forward pass accumulates no gradients"),
        std::pair("recompute", "a forward pass keeps nothing to recompute")})
    if (a.bench.forward && std::ranges::count(given, name, &settings::Assignment::name) > 0)
      throw UsageError({.where = std::string("--") + name,
                        .what = why,
                        .seen = "--forward",
                        .accepted = "one of the two",
                        .advice = "leave --forward out to measure training steps"});
  settings::set_all(a.bench.config, given);
  settings::check_effects(a.bench.config, given);
  if (!a.runs.empty()) a.bench.runs = settings::parse_runs(a.runs);
  a.bench.on_part = PartProgress();
  const bench::MemoryBenchResult result = bench::bench_memory(a.bench, device);
  show_measurement(a.output, memory_table(a, result), memory_json(a, result),
                   memory_again(a, result));
}

}  // namespace

void add_bench_memory(CLI::App& bench) {
  auto* command = bench.add_subcommand(
      "memory", "Memory of tensors by kind, predicted and measured: FP32, 16-bit model, mixed");
  const auto a = std::make_shared<MemoryArguments>();
  command
      ->add_option("--model", a->model,
                   "Recipe whose model, optimizer and loss are used, or the model's name")
      ->capture_default_str();
  command
      ->add_option("--input", a->bench.input,
                   "Shape of the input, the batch first: 1,3,224,224 [the recipe's]")
      ->delimiter(',');
  command
      ->add_option("--batch-size", a->bench.batch_sizes,
                   "Batch sizes, by comma [the first number of --input]")
      ->delimiter(',');
  command->add_flag("--forward", a->bench.forward,
                    "One forward pass without training, in place of training steps");
  command->add_flag("--whole-logits", a->bench.whole_logits,
                    "The loss of all logits at once, in place of the network's own: what a gpt "
                    "would hold without it");
  command->add_option("--runs", a->runs,
                      "Runs to compare with fp32, by comma [16-bit model and mixed: bf16-true,bf16 "
                      "on a CPU, fp16-true,fp16 on CUDA]");
  a->settings.add_those(*command, is_of_step);
  command->add_option("--classes", a->bench.classes, "Classes of pictures or texts [the recipe's]");
  command->add_option("--vocabulary", a->bench.vocabulary, "Words that a text model knows")
      ->capture_default_str();
  add_device_option(*command, a->device);
  a->output.add_to(*command);
  command->callback([a] { bench_memory(*a); });
}

}  // namespace demi::cli
