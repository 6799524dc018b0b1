#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lab/settings/config_source.h"
#include "lab/settings/recipe.h"

namespace demi::cli {

/// A setting as an option: " --lr 0.1", " --no-autocast".
std::string option_text(const settings::Setting& setting, const std::string& value);

/// The settings of a training run as options of a command: --name VALUE, --flag and --no-flag, and
/// --config FILE. Their order, from weakest to strongest: the recipe, the file, the environment
/// (DEMI_NAME), the options; of several options that write one setting the last.
class SettingOptions {
 public:
  /// The command has an option RECIPE, whose own settings --help shows below the options. These
  /// show the values of `default_recipe`, which is trained if none is named; "": there is none.
  /// `without` are settings that the command has no use for.
  void add_to(CLI::App& command, const std::string& default_recipe,
              const std::set<std::string>& without);

  /// The settings that `is_taken` alone, without --config: of a recipe that the command names in
  /// its own way.
  void add_those(CLI::App& command, const std::function<bool(const settings::Setting&)>& is_taken);

  /// --mp and --mixed-precision: the device's mixed precision.
  void add_mixed_flag(CLI::App& command);

  /// The settings of file, environment and options, from the weakest to the strongest, without
  /// those that the command does not use. Throws UsageError.
  std::vector<settings::Assignment> given() const;

  /// Says once which variables, and which precisions of the file, given() left out.
  void note_ignored() const;

  /// The recipe's settings on the device that `given` names, without the other given settings.
  /// Throws UsageError, as pick_device.
  static settings::Config start_of(const settings::Recipe& recipe,
                                   const std::vector<settings::Assignment>& given,
                                   bool starts_from_weights = false);

  /// The recipe's settings, overridden by the given ones. Throws UsageError, as check_effects.
  settings::Config resolve(const settings::Recipe& recipe) const;

  /// Throws UsageError for a given setting that has no effect in a run of that config.
  void check_effects(settings::Config config, const std::vector<settings::Assignment>& given) const;

  /// The content of the config file, which is read once; empty if there is none. Throws UsageError.
  const settings::ConfigFile& of_file() const;
  const std::string& file() const { return file_; }

  /// The options alone, in the order in which they were typed; of several that write one setting
  /// the last.
  std::vector<settings::Assignment> typed_ones() const;

  /// The options as they were typed, for a command to copy: " --lr 0.1 --no-autocast".
  std::string typed() const;

 private:
  struct Form {
    std::string setting, option;
    std::string text = {};  // of a flag: the value that it sets
  };

  // Throws UsageError for a value that the flag does not take.
  static std::string value_of(const Form& flag, const std::string& given);

  // `value`: shown in brackets; whether a flag is on.
  void add(CLI::App& command, const settings::Setting& setting, const std::string& value);

  CLI::App* command_ = nullptr;
  std::set<std::string> without_;
  std::string file_;
  std::map<const CLI::Option*, Form> forms_;
  mutable std::optional<settings::ConfigFile> of_file_;
  mutable std::set<std::string> ignored_;
};

}  // namespace demi::cli
