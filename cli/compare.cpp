#include "demi/train/compare.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/stop.h"
#include "demi/core/error.h"
#include "demi/profile/memory.h"
#include "demi/report/file.h"
#include "demi/report/run_folder.h"
#include "demi/train/compare_report.h"
#include "demi/train/watch.h"

namespace demi::cli {
namespace {

// What was typed; empty options take the recipe's or the device's value.
struct CompareArguments {
  std::string recipe = "fashion-cnn";
  std::string runs, device = "auto", data_dir, run_dir, model, data;
  std::optional<int64_t> epochs, batch_size;
  std::optional<double> lr;
  uint64_t seed = 0;
  int64_t limit = 0;
  bool json = false;
};

void add_options(CLI::App& command, CompareArguments& a) {
  command.add_option("RECIPE", a.recipe, "What to train: fashion-cnn")->capture_default_str();
  command.add_option(
      "--runs", a.runs,
      "Runs, by comma: fp32, tf32, bf16, fp16, bf16-true, fp16-true, fp64, each with a variant "
      "after a "
      "colon if wanted: fp16:no-scaler, fp16:scale=128 [fp32,bf16 on a CPU, fp32,fp16 on CUDA]");
  command.add_option("--epochs", a.epochs, "Passes over the training data [the recipe's: 3]");
  command.add_option("--batch-size", a.batch_size, "Pictures per step [the recipe's: 256]");
  command.add_option("--lr", a.lr,
                     "Learning rate; the peak of a one-cycle schedule [the recipe's: 0.01]");
  command.add_option("--device", a.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  command.add_option("--seed", a.seed, "Of initial weights and data order, the same in every run")
      ->capture_default_str();
  command.add_option("--data-dir", a.data_dir,
                     "Folder of the data set's files [DEMI_DATA, or where data sets lie]");
  command
      .add_option("--limit", a.limit,
                  "Use that many training pictures, and a sixth of it for testing; 0: all")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command.add_option("--model", a.model, "Another network for the recipe's data");
  command.add_option("--data", a.data, "Another data set for the recipe's network");
  command.add_option("--run-dir", a.run_dir, "Where run folders are made [DEMI_RUNS, or runs]");
  command.add_flag("--json", a.json, "One JSON object on stdout instead of the table");
}

template <class Number>
Number at_least(Number value, Number least, std::string_view option) {
  if (value >= least) return value;
  throw UsageError({.where = "compare",
                    .what = std::string(option) + " is too small",
                    .seen = fmt::format("{}", value),
                    .accepted = fmt::format("{} or more", least)});
}

train::Recipe resolved_recipe(const CompareArguments& a) {
  train::Recipe recipe = train::find_recipe(a.recipe);
  if (a.epochs) recipe.epochs = at_least<int64_t>(*a.epochs, 1, "--epochs");
  if (a.batch_size) recipe.batch_size = at_least<int64_t>(*a.batch_size, 1, "--batch-size");
  if (a.lr) recipe.lr = at_least(*a.lr, 0.0, "--lr");
  if (!a.model.empty()) recipe.model = a.model;
  if (!a.data.empty()) recipe.data = a.data;
  return recipe;
}

std::vector<train::RunSpec> resolved_runs(const CompareArguments& a, c10::Device device) {
  if (a.runs.empty()) return train::default_runs(device);
  std::vector<train::RunSpec> runs;
  std::string_view rest = a.runs;
  while (true) {
    const std::size_t comma = rest.find(',');
    runs.push_back(train::parse_run(rest.substr(0, comma)));
    for (std::size_t i = 0; i + 1 < runs.size(); ++i) {
      if (runs[i].label == runs.back().label) {
        throw UsageError(
            {.where = "compare", .what = "the same run twice", .seen = runs.back().label});
      }
    }
    if (comma == std::string_view::npos) return runs;
    rest.remove_prefix(comma + 1);
  }
}

// The line that makes this comparison again.
std::string command_of(const train::CompareOptions& options, const CompareArguments& arguments) {
  std::string runs;
  for (const train::RunSpec& run : options.runs) runs += (runs.empty() ? "" : ",") + run.label;
  const train::Recipe& recipe = options.recipe;
  std::string line = fmt::format(
      "demi compare {} --runs {} --device {} --epochs {} --batch-size {} --lr {} --seed {}",
      recipe.name, runs, options.device.str(), recipe.epochs, recipe.batch_size, recipe.lr,
      options.seed);
  if (arguments.limit > 0) line += fmt::format(" --limit {}", arguments.limit);
  if (!arguments.data_dir.empty()) line += " --data-dir '" + arguments.data_dir + "'";
  const train::Recipe& known = train::find_recipe(recipe.name);
  if (recipe.model != known.model) line += " --model " + recipe.model;
  if (recipe.data != known.data) line += " --data " + recipe.data;
  return line;
}

void write_config(const report::RunFolder& folder, const train::CompareOptions& options,
                  const CompareArguments& arguments) {
  nlohmann::ordered_json config{{"command", command_of(options, arguments)},
                                {"recipe", options.recipe.name},
                                {"model", options.recipe.model},
                                {"data", options.recipe.data},
                                {"data_dir", arguments.data_dir},
                                {"epochs", options.recipe.epochs},
                                {"batch_size", options.recipe.batch_size},
                                {"optimizer", options.recipe.optimizer},
                                {"lr", options.recipe.lr},
                                {"weight_decay", options.recipe.weight_decay},
                                {"schedule", options.recipe.schedule},
                                {"device", options.device.str()},
                                {"seed", options.seed},
                                {"limit", arguments.limit}};
  config["runs"] = nlohmann::ordered_json::array();
  for (const train::RunSpec& run : options.runs) config["runs"].push_back(run.label);
  report::write_file_atomically(folder.file("config.json"), config.dump(2) + "\n");
}

void compare(const CompareArguments& arguments) {
  profile::count_cpu_memory();
  train::CompareOptions options;
  options.recipe = resolved_recipe(arguments);
  options.device = train::pick_device(arguments.device);
  options.runs = resolved_runs(arguments, options.device);
  options.seed = arguments.seed;
  train::require_model(options.recipe.model);
  const train::RecipeData data = train::load_data(options.recipe, {.data_dir = arguments.data_dir,
                                                                   .limit = arguments.limit,
                                                                   .seed = arguments.seed,
                                                                   .device = options.device});
  options.should_stop = [] { return stop_signal() != 0; };

  const report::Terminal terminal = report::Terminal::of(STDERR_FILENO);
  const auto progress = std::make_shared<train::ShowProgress>(std::cerr, terminal, options.device);
  for (const train::RunSpec& run : options.runs) {
    const std::string warning = train::slow_precision_warning(run.precision, options.device);
    if (!warning.empty()) progress->message("note: " + warning);
  }
  constexpr std::uint64_t kNeededBytes = 64U
                                         << 20U;  // weights, state and report of the recipes here
  const auto folder = report::RunFolder::create("compare-" + options.recipe.name,
                                                report::runs_root(arguments.run_dir), kNeededBytes);
  options.folder = folder.path();
  write_config(folder, options, arguments);
  const auto files = std::make_shared<train::FileMetrics>(folder.path());
  options.callbacks = {progress, files};
  options.on_run_begin = [&](const train::RunSpec& run) {
    progress->set_run(run.label);
    files->set_run(run.label);
  };

  const train::Comparison result = train::compare(options, data);
  progress->clear();
  report::write_file_atomically(
      folder.file("report.html"),
      report::to_html(train::to_page(result, command_of(options, arguments))));
  const std::string text = arguments.json ? train::to_json(result) + "\n"
                                          : report::to_text(train::to_table(result),
                                                            report::Terminal::of(STDOUT_FILENO));
  std::cout << text << std::flush;
  std::cerr << "report: " << folder.file("report.html").string() << "\n";
  if (result.stopped) throw Exit{kStoppedBySignal + stop_signal()};
}

}  // namespace

void add_compare(CLI::App& app) {
  auto* command = app.add_subcommand(
      "compare", "Train the same model in FP32 and in mixed precision, side by side");
  const auto arguments = std::make_shared<CompareArguments>();
  add_options(*command, *arguments);
  command->callback([arguments] { compare(*arguments); });
}

}  // namespace demi::cli
