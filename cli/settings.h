#pragma once

#include <CLI/CLI.hpp>
#include <set>
#include <string>
#include <vector>

#include "lab/recipes/config_source.h"

namespace demi::cli {

/// The settings of a training run as options of a command: --name VALUE, --flag and --no-flag, and
/// --config FILE. What counts, from weakest to strongest: the recipe, the file, the environment
/// (DEMI_NAME), the options.
class SettingOptions {
 public:
  /// The command has an option RECIPE, whose own settings --help shows below the options. These
  /// show the values of `default_recipe`, which is trained if none is named; "": there is none.
  /// `without` are settings that the command has no use for.
  void add_to(CLI::App& command, const std::string& default_recipe,
              const std::set<std::string>& without);

  /// --mp and --mixed-precision: the device's mixed precision.
  void add_mixed_flag(CLI::App& command);

  /// What file, environment and options set, from the weakest to the strongest. Throws UsageError.
  std::vector<train::Assignment> given() const;

  /// The recipe's settings with what is given. Throws UsageError.
  train::Config resolve(train::Config recipe) const;

  /// The recipe that the config file names, or "".
  std::string recipe_of_file() const;

  /// What was typed, to be typed again: " --lr 0.1 --no-autocast".
  std::string typed() const;

 private:
  void add(CLI::App& command, const train::Setting& setting, const train::Config& shown);

  std::string file_;
  std::vector<train::Assignment> typed_;
};

}  // namespace demi::cli
