#pragma once

#include <CLI/CLI.hpp>
#include <string>

// A function per command, each in a file of that name. It adds the subcommand with its options; its
// callback calls the library and prints: results to stdout (a table, or one JSON object with
// --json), progress and notes to stderr. A failure is an exception (demi/core/error.h);
// cli/exit_code.h is the only table that turns it into an exit code.
namespace demi::cli {

/// Every command, in the order of `demi --help`. A new command is declared below and called in
/// commands.cpp.
void add_commands(CLI::App& app);

/// Requires a subcommand. Unlike CLI11's require_subcommand it reports a misspelt name.
void require_one_of(CLI::App& app);

/// --device, for the device that a command computes on.
void add_device_option(CLI::App& command, std::string& device);

void add_compare(CLI::App& app);
void add_completion(CLI::App& app);
void add_data(CLI::App& app);
void add_doctor(CLI::App& app);
void add_eval(CLI::App& app);
void add_export(CLI::App& app);
void add_generate(CLI::App& app);
void add_inspect(CLI::App& app);
void add_manual(CLI::App& app);
void add_number(CLI::App& app);
void add_policy(CLI::App& app);
void add_predict(CLI::App& app);
void add_profile(CLI::App& app);
void add_train(CLI::App& app);

void add_bench_autocast(CLI::App& bench);
void add_bench_matmul(CLI::App& bench);
void add_bench_memory(CLI::App& bench);
void add_bench_model(CLI::App& bench);
void add_bench_recipe(CLI::App& bench);
void add_bench_step(CLI::App& bench);

}  // namespace demi::cli
