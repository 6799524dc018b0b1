#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/output.h"
#include "lab/bench/recipe.h"
#include "lab/recipes/machine.h"

namespace demi::cli {

// Functions that the four commands of `demi bench` share.

/// A run's numbers; host_us, kernels, launches, busy_ms and idle_share if measured, on a device.
nlohmann::ordered_json timing_json(const bench::RecipeTiming& timing);

/// Adds columns and notes for what runs on a device measured there, and what is missing.
void add_device_columns(const bench::RecipeBenchResult& result, report::Table& table);

/// "On PROCESSOR (...), LibTorch ..., demi ...."
std::string where_of(const recipes::Machine& machine);

/// Prints the measurement, with `again`, the line that repeats it, as last note and last JSON
/// field.
void show_measurement(const Output& output, report::Table table, nlohmann::ordered_json json,
                      const std::string& again);

/// --warmup, --steps, --rounds.
void add_round_options(CLI::App& command, int& warmup, int& steps, int& rounds);

}  // namespace demi::cli
