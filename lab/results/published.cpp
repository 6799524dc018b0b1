#include "lab/results/published.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "demi/core/error.h"
#include "lab/report/format.h"
#include "lab/report/table_json.h"
#include "lab/settings/recipe.h"

namespace demi::results {
namespace {

using report::Align;

constexpr double kMegabyte = 1e6, kMebibyte = 1 << 20;

report::Table cifar10_resnet50() {
  report::Table table{.title = "ResNet-50 on CIFAR-10, 200 epochs, FP32 and mixed precision"};
  table.columns = {{.name = "device", .align = Align::kLeft},
                   {.name = "batch"},
                   {.name = "fp32, an epoch"},
                   {.name = "mixed, an epoch"},
                   {.name = "fp32 size", .unit = "MB / MiB"},
                   {.name = "mixed size", .unit = "MB / MiB"},
                   {.name = "fp32 accuracy"},
                   {.name = "mixed accuracy"}};
  table.rows = {
      {"P100", "128", "1m32s", "1m15s", "94 / 90", "48 / 46", "94.50 %", "94.43 %"},
      {"4 x P100", "512", "26.224 s", "23.359 s", "94 / 90", "48 / 46", "94.51 %", "94.78 %"},
      {"4 x K80", "512", "1m24s", "1m17s", "94 / 90", "48 / 46", "94.634 %", "94.922 %"},
      {"V100", "128", "47.112 s", "25.601 s", "94 / 90", "48 / 46", "94.87 %", "94.65 %"},
      {"4 x V100", "512", "17.841 s", "12.833 s", "94 / 90", "48 / 46", "94.38 %", "94.60 %"}};
  table.notes = {
      "Source: suvojit-0x55aa/mixed-precision-pytorch, README.",
      "Sizes in MB of 10^6 bytes, and behind the stroke in MiB of 1,048,576 bytes. The source "
      "writes 90 MB and 46 MB and means MiB: the network's 23,520,842 weights of 4 bytes "
      "are 89.7 MiB, or 94.1 MB. Its MB are converted here.",
      "The source's program evaluates the network that it trains, which has 16-bit weights in a "
      "mixed run, after each epoch, and keeps the best one."};
  return table;
}

report::Table ilsvrc() {
  report::Table table{.title = "ILSVRC12 top-1 accuracy, FP32 and mixed precision"};
  table.columns = {{.name = "network", .align = Align::kLeft},
                   {.name = "fp32", .unit = "%"},
                   {.name = "mixed", .unit = "%"}};
  table.rows = {{"AlexNet", "56.77", "56.93"},      {"VGG-D", "65.40", "65.43"},
                {"GoogLeNet", "68.33", "68.43"},    {"Inception v2", "70.03", "70.02"},
                {"Inception v3", "73.85", "74.13"}, {"ResNet-50", "75.92", "76.04"}};
  table.notes = {"Source: Micikevicius et al. 2017, \"Mixed precision training\", table 1."};
  return table;
}

report::Table detection() {
  report::Table table{.title = "Detection, mAP: FP32, mixed without and with loss scaling"};
  table.columns = {{.name = "network", .align = Align::kLeft},
                   {.name = "fp32", .unit = "%"},
                   {.name = "no scaling", .unit = "%"},
                   {.name = "scaling", .unit = "%"}};
  table.rows = {{"Faster R-CNN", "69.1", "68.6", "69.7"},
                {"Multibox SSD", "76.9", "diverges", "77.1"}};
  table.notes = {"Source: Micikevicius et al. 2017, \"Mixed precision training\", table 2."};
  return table;
}

const Published* find(const std::string& recipe) {
  for (const Published& one : published())
    if (!recipe.empty() && one.recipe == recipe) return &one;
  return nullptr;
}

// A mixed run as two rows of the published table, which differ in what its accuracy is of.
std::vector<std::vector<std::string>> rows_of(const recipes::RunResult& fp32,
                                              const recipes::RunResult& mixed,
                                              const recipes::Comparison& c) {
  const auto seconds = [](const recipes::RunResult& run) {
    return report::format_duration(std::chrono::duration<double>(run.seconds_per_epoch));
  };
  const auto size = [](const recipes::RunResult& run) {
    const auto bytes = static_cast<double>(run.model_bytes);
    return run.model_bytes > 0
               ? fmt::format("{:.1f} / {:.1f}", bytes / kMegabyte, bytes / kMebibyte)
               : "";
  };
  const auto percent = [](const std::optional<double>& accuracy) {
    return accuracy ? report::format_percent(*accuracy) : "";
  };
  const int64_t devices = c.config.ranks;
  const std::string run =
      fmt::format("this run, {}{}, {}", devices > 1 ? fmt::format("{} x ", devices) : "",
                  recipes::title(c.machine), mixed.spec.label);
  const auto row = [&](const std::string& what, const std::optional<double>& accuracy) {
    return std::vector<std::string>{run + what,
                                    std::to_string(c.config.batch_size * devices),
                                    seconds(fp32),
                                    seconds(mixed),
                                    size(fp32),
                                    size(mixed),
                                    percent(fp32.test_accuracy),
                                    percent(accuracy)};
  };
  return {row(", its 16-bit file", mixed.test_accuracy),
          row(", evaluated in fp32", mixed.test_accuracy_fp32_eval)};
}

}  // namespace

const std::vector<Published>& published() {
  static const std::vector<Published> tables{
      {"cifar10-resnet50", cifar10_resnet50()}, {"", ilsvrc()}, {"", detection()}};
  return tables;
}

const Published& published_of(const std::string& recipe) {
  if (const Published* found = find(recipe)) return *found;
  std::string known;
  for (const Published& one : published())
    if (!one.recipe.empty()) known += (known.empty() ? "" : ", ") + one.recipe;
  throw UsageError({.where = "--published",
                    .what = "no figures of this recipe are published",
                    .seen = recipe,
                    .accepted = known,
                    .advice = "--published alone prints all tables"});
}

std::optional<report::Table> published_beside(const recipes::Comparison& c) {
  const Published* known = find(c.recipe);
  if (!known || c.stopped) return std::nullopt;
  const settings::Config& recipe = settings::find_recipe(c.recipe).config;
  if (c.config.model != recipe.model || c.config.data != recipe.data) return std::nullopt;
  const auto fp32 = std::ranges::find_if(
      c.runs, [](const recipes::RunResult& run) { return run.spec.label == "fp32"; });
  if (fp32 == c.runs.end()) return std::nullopt;
  report::Table table = known->table;
  const std::size_t rows = table.rows.size();
  for (const recipes::RunResult& run : c.runs)
    if (run.spec.precision.is_mixed())
      for (std::vector<std::string>& row : rows_of(*fp32, run, c))
        table.rows.push_back(std::move(row));
  if (table.rows.size() == rows) return std::nullopt;
  table.notes.push_back(fmt::format(
      "This run: {} epoch{} of {} training examples, tested on {}; on {}.", c.config.epochs,
      c.config.epochs == 1 ? "" : "s", report::format_count(c.training_examples),
      report::format_count(c.test_examples), c.machine.device_name));
  return table;
}

nlohmann::ordered_json json_of(const std::vector<Published>& tables) {
  auto json = nlohmann::ordered_json::array();
  for (const Published& one : tables) {
    nlohmann::ordered_json table = json_of(one.table);
    if (!one.recipe.empty()) table["recipe"] = one.recipe;
    json.push_back(std::move(table));
  }
  return json;
}

}  // namespace demi::results
