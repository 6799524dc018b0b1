#pragma once

#include <c10/core/Device.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lab/bench/recipe.h"
#include "lab/report/format.h"
#include "lab/report/table.h"

namespace demi::cli {

/// What `bench recipe` and `bench model` say in the same words.
nlohmann::ordered_json json_of(const bench::RecipeTiming& timing);
std::string where_of(const train::Machine& machine);

/// To stderr, for runs that do not pay on the device. `runs` empty: its mixed precision.
void note_slow(const std::vector<train::RunSpec>& runs, c10::Device device);

/// --warmup, --steps, --rounds, --json.
void add_bench_options(CLI::App& command, int& warmup, int& steps, int& rounds, bool& json);

}  // namespace demi::cli
