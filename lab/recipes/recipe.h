#pragma once

#include <span>
#include <string>
#include <string_view>

#include "demi/core/export.h"
#include "lab/recipes/config.h"

namespace demi::recipes {

/// A model, a data set and the published way to train the one on the other. Every value can be
/// overridden.
struct Recipe {
  std::string name;
  std::string title;  // one line for people
  Config config;
  /// `demi compare` prints total time and greatest memory of each run too, in the AMP recipe's
  /// words.
  bool prints_totals = false;
  /// The runs of `demi compare` if none are named, as parse_runs reads them; empty: default_runs.
  std::string runs = {};
};

DEMI_API std::span<const Recipe> recipes();

/// Throws UsageError with the nearest right name.
DEMI_API const Recipe& find_recipe(std::string_view name);

}  // namespace demi::recipes
