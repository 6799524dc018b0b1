#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/recipes/compare.h"
#include "lab/report/table.h"

namespace demi::results {

/// A table of published figures of mixed precision training (docs/published_results.md shows the
/// same).
struct Published {
  std::string recipe;   // that trains the same network on the same data; "" where demi has none
  report::Table table;  // its source in the notes
};

/// The tables, in the order in which the page has them.
DEMI_API const std::vector<Published>& published();

/// The table of a recipe. Throws UsageError if none is known.
DEMI_API const Published& published_of(const std::string& recipe);

/// The published table of the comparison's recipe with two rows below it for each of its mixed runs
/// and its FP32 run, with the accuracy of its 16-bit file and that of its FP32 weights, and a note
/// on the runs. With several ranks the batch is that of all together. nullopt if no figures are
/// published, if the model or the data are others than the recipe's, if training was stopped, or if
/// one of the two runs is missing.
DEMI_API std::optional<report::Table> published_beside(const recipes::Comparison& comparison);

/// An array of the tables: title, columns, rows, notes, and the recipe of those that have one.
DEMI_API nlohmann::ordered_json json_of(const std::vector<Published>& tables);

}  // namespace demi::results
