#pragma once

// The program demi as a part of this one: a fork that calls it needs none of the 0.3 s that a start
// takes to load LibTorch.
#include <string>
#include <vector>

namespace cli_testing {

/// True if a fork of this process is whole: threads, as those of OpenMP, and what CUDA's driver
/// holds would be missing.
bool can_be_forked();

/// Why a fork of this process must start the program's file, as far as the arguments and the
/// environment say; else "".
std::string why_not_loaded(const std::vector<std::string>& arguments);

/// In a fork of this process: calls the program, and ends as it does. `words`: the program's name
/// and its arguments.
[[noreturn]] void run_loaded_program(const std::vector<char*>& words) noexcept;

}  // namespace cli_testing
