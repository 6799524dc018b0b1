#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace demi::cli {

/// What is wrong with a value of no characters.
inline constexpr const char* kEmptyValue =
    "the value is empty, as a variable of the shell that is not set; leave the option out for its "
    "default";

/// The arguments, in which "--name=" of an option that has a value is two: CLI11 reads the empty
/// value as none, and takes the next argument for it. Throws ValidationError for that of an option
/// that needs no value (--interleave=), for which CLI11 would take the one of the bare option.
std::vector<std::string> with_empty_values(const std::vector<std::string>& arguments,
                                           const CLI::App& app);

/// Refuses what is no whole number of this range, which `most` by default has the end of an int's.
CLI::Validator whole_number(std::int64_t least, std::int64_t most = INT32_MAX);

/// Makes each option with a number refuse an empty value, which CLI11 would read as 0, and a whole
/// one beyond 64 bits, which it would round to the nearest; and --runs, --precision and --sweep an
/// empty value, which would be that of an option that is not given.
void check_values(CLI::App& app);

}  // namespace demi::cli
