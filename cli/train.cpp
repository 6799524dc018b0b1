#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/ranks.h"
#include "cli/session.h"
#include "cli/settings.h"
#include "demi/core/error.h"
#include "lab/recipes/what_if.h"
#include "lab/results/compare_report.h"
#include "lab/settings/recipe.h"
#include "lab/settings/resolved.h"

namespace demi::cli {
namespace {

struct TrainArguments {
  std::string recipe, run_dir;
  SettingOptions settings;
  bool list = false;
  Output output;
};

void show_recipes(const Output& output) {
  std::vector<Entry> entries;
  auto json = nlohmann::ordered_json::array();
  for (const settings::Recipe& recipe : settings::recipes()) {
    const settings::Config& c = recipe.config;
    entries.push_back({recipe.name,
                       {recipe.title, fmt::format("data {}; {} epoch{}, batch {}, {} with {} ({})",
                                                  c.data, c.epochs, c.epochs == 1 ? "" : "s",
                                                  c.batch_size, c.optimizer, c.lr, c.schedule)}});
    json.push_back({{"name", recipe.name},
                    {"title", recipe.title},
                    {"model", c.model},
                    {"data", c.data},
                    {"precision", c.precision}});
  }
  output.show(entries, nlohmann::ordered_json{{"recipes", json}});
  if (output.is_json()) return;
  Output::print_lines(
      "\n"
      "Train one:             demi train fashion-cnn --mp\n"
      "FP32 against mixed:    demi compare fashion-cnn\n"
      "A recipe's settings:   demi train fashion-cnn --help\n"
      "A network from Python: demi train net.pt2 --data cifar10\n"
      "Data on this machine:  demi data list\n");
}

void train_one(const TrainArguments& a) {
  if (a.list) return show_recipes(a.output);
  Start start =
      resolve_start({.command = "train", .recipe = a.recipe, .run_dir = a.run_dir}, a.settings);
  if (run_as_ranks(start.command, start.config)) return;
  Session session(std::move(start));
  const recipes::Comparison result =
      session.compare({settings::run_of(session.config())}, /*alone=*/true);
  std::vector<report::Table> tables{results::to_table(result)};
  if (!result.classes.empty() && !result.runs.front().class_accuracy.empty())
    tables.push_back(results::class_table(result));
  for (report::Table& table : recipes::what_if_tables(result)) tables.push_back(std::move(table));
  a.output.show(tables, results::json_of(result));
  session.finish(result);
  require_success("train", result);
}

}  // namespace

void add_train(CLI::App& app) {
  auto* command = app.add_subcommand("train", "One training run, in any precision");
  const auto a = std::make_shared<TrainArguments>();
  command->add_option(
      "RECIPE", a->recipe,
      "Recipe to train, or the .pt2 file of a network from Python; --list names recipes");
  command->add_flag("--list", a->list, "List the recipes");
  command->add_option("--run-dir", a->run_dir,
                      "Folder in which run folders are made [DEMI_RUNS, or runs]");
  a->output.add_to(*command);
  a->settings.add_to(*command, "", {});
  a->settings.add_mixed_flag(*command);
  command->callback([a] { train_one(*a); });
}

}  // namespace demi::cli
