#include <fmt/format.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/run_session.h"
#include "cli/settings.h"
#include "demi/core/error.h"
#include "lab/recipes/compare_report.h"
#include "lab/recipes/plan.h"
#include "lab/recipes/recipe.h"

namespace demi::cli {
namespace {

struct TrainArguments {
  std::string recipe, run_dir;
  SettingOptions settings;
  bool json = false, list = false;
};

report::Terminal result_terminal() { return report::Terminal::of(STDOUT_FILENO); }

void print_list(bool as_json) {
  auto json = nlohmann::ordered_json::array();
  std::string text;
  for (const train::Recipe& recipe : train::recipes()) {
    const train::Config& c = recipe.config;
    text += fmt::format("{:<20}{}\n{:<20}data {}; {} epoch{}, batch {}, {} with {} ({})\n",
                        recipe.name, recipe.title, "", c.data, c.epochs, c.epochs == 1 ? "" : "s",
                        c.batch_size, c.optimizer, c.lr, c.schedule);
    json.push_back({{"name", recipe.name},
                    {"title", recipe.title},
                    {"model", c.model},
                    {"data", c.data},
                    {"precision", c.precision}});
  }
  text +=
      "\nTrain one:             demi train fashion-cnn --mp\n"
      "FP32 beside mixed:     demi compare fashion-cnn\n"
      "Every value is an option, with the recipe's own: demi train fashion-cnn --help\n"
      "Which data are here:   demi data list\n";
  std::cout << (as_json ? nlohmann::ordered_json{{"recipes", json}}.dump(2) + "\n" : text);
}

void train_one(const TrainArguments& a) {
  if (a.list) return print_list(a.json);
  const std::string recipe = a.recipe.empty() ? a.settings.recipe_of_file() : a.recipe;
  if (recipe.empty())
    throw UsageError({.where = "train",
                      .what = "which recipe?",
                      .advice = "`demi train --list` names them: demi train fashion-cnn"});
  const std::string line = "demi train " + recipe + a.settings.typed();
  train::Config config = a.settings.resolve(train::find_recipe(recipe).config);
  if (config.precision != "mixed")
    train::run_of(config);  // a wrong name is said before data is read
  RunSession session("train", recipe, std::move(config));
  const train::Comparison result =
      session.compare({train::run_of(session.config())}, a.run_dir, line, /*keep_best=*/true);
  if (a.json) {
    std::cout << train::to_json(result) << "\n";
  } else {
    std::cout << report::to_text(train::to_table(result), result_terminal());
    if (!result.runs.front().class_accuracy.empty())
      std::cout << "\n" << report::to_text(train::class_table(result), result_terminal());
  }
  std::cout << std::flush;
  session.finish(result, line);
  require_success("train", result);
}

}  // namespace

void add_train(CLI::App& app) {
  auto* command = app.add_subcommand("train", "One training run, in any precision");
  const auto a = std::make_shared<TrainArguments>();
  command->add_option("RECIPE", a->recipe, "What to train; --list names them");
  command->add_flag("--list", a->list, "The recipes");
  command->add_option("--run-dir", a->run_dir, "Where run folders are made [DEMI_RUNS, or runs]");
  command->add_flag("--json", a->json, "One JSON object on stdout instead of the table");
  a->settings.add_to(*command, "", {});
  a->settings.add_mixed_flag(*command);
  command->callback([a] { train_one(*a); });
}

}  // namespace demi::cli
