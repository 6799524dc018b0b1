#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace demi::cli {

/// The arguments, in which "--name=" of an option that has a value is two: CLI11 reads the empty
/// value as none, and takes the next argument for it.
std::vector<std::string> with_empty_values(const std::vector<std::string>& arguments,
                                           const CLI::App& app);

/// Refuses what is no whole number of this range, which `most` by default has the end of an int's.
CLI::Validator whole_number(std::int64_t least, std::int64_t most = INT32_MAX);

/// Makes each option with a whole number refuse one beyond 64 bits, which CLI11 would round to the
/// nearest, and --runs, --precision and --sweep an empty value, which would be that of an option
/// that is not given.
void check_values(CLI::App& app);

}  // namespace demi::cli
