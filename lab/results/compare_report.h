#pragma once

#include <nlohmann/json_fwd.hpp>

#include "demi/core/export.h"
#include "lab/recipes/compare.h"
#include "lab/report/html_page.h"
#include "lab/report/table.h"

namespace demi::results {

/// The one table: a row a run.
DEMI_API report::Table to_table(const recipes::Comparison& comparison);

/// Test accuracy of each class by run, for runs that were asked for it.
DEMI_API report::Table class_table(const recipes::Comparison& comparison);

/// The whole report: the table, the machine, curves of all runs laid over each other, time by
/// phase. `command` is the line that makes it again.
DEMI_API report::Page to_page(const recipes::Comparison& comparison, const std::string& command);

/// A JSON object with the same words as the table: runs[], speedup, recipe, machine, notes.
DEMI_API nlohmann::ordered_json json_of(const recipes::Comparison& comparison);

}  // namespace demi::results
