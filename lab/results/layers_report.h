#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/recipes/layers.h"
#include "lab/report/html_page.h"
#include "lab/report/table.h"

namespace demi::results {

/// A comparison of layers: its options and its results.
struct LayerReport {
  std::string recipe;                          // its name, for people
  recipes::LayerOptions options;               // what was compared
  std::vector<recipes::LayerComparison> runs;  // one for each run in low precision
};

/// A table for each run, the most harmed layer first.
DEMI_API std::vector<report::Table> to_tables(const LayerReport& report);

/// Tables, and bars of the errors by layer. `command` is the line that makes it again.
DEMI_API report::Page to_page(const LayerReport& report, const std::string& command);

/// A JSON object with the same words as the tables: runs[]: precision, loss_scale, loss, fp32_loss,
/// layers[]: name, op, harm, output, gradient, weight_gradient. Inf and NaN are written as null.
DEMI_API nlohmann::ordered_json json_of(const LayerReport& report);

}  // namespace demi::results
