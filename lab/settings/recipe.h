#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "demi/core/export.h"
#include "lab/settings/config.h"

namespace demi::settings {

/// A model, a data set and the published way to train the one on the other. Every value can be
/// overridden.
struct Recipe {
  std::string name;   // as the program's commands name it
  std::string title;  // one line for people
  Config config;      // the published values
  /// `demi compare` prints total time and greatest memory of each run too, in the AMP recipe's
  /// words.
  bool prints_totals = false;
  /// The runs of `demi compare` if none are named, as parse_runs reads them; empty: default_runs.
  std::string runs = {};
  /// Settings of a run that starts from weights (--from), which has less to learn; the others are
  /// those of `config`.
  std::vector<std::pair<std::string, std::string>> fine_tuning = {};
  /// Settings of a run on a GPU, which has time for a larger network.
  std::vector<std::pair<std::string, std::string>> on_gpu = {};
};

/// Circumstances that change a recipe's settings.
struct Circumstances {
  bool starts_from_weights = false;  // from saved weights instead of new ones
  bool on_gpu = false;               // the run is on one
};

/// The recipe's settings, with those of `on_gpu` and of `fine_tuning` where they hold.
DEMI_API Config config_of(const Recipe& recipe, Circumstances circumstances);

/// All recipes, in the order in which `demi train --list` shows them.
DEMI_API std::span<const Recipe> recipes();

/// The recipe of that name. For a file with a network from Python it trains that network on data
/// that are still to be named: sizes are the file's, the rest are the settings' defaults. Throws
/// UsageError with the nearest right name, and as models::imported_file.
DEMI_API const Recipe& find_recipe(std::string_view name);

/// The recipe's name in that of a folder: "net" of runs/net.pt2.
DEMI_API std::string folder_name(std::string_view recipe);

}  // namespace demi::settings
