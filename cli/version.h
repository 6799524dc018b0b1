#pragma once

#include <string>
#include <vector>

namespace demi::cli {

/// Whether the arguments, without the program's name, are --version and --verbose.
bool asks_for_versions(const std::vector<std::string>& arguments);

/// Prints the program's version and what it runs on: its libraries with their versions and
/// LibTorch's place, the kernels, the GPU. Measures nothing. Throws UsageError after the first two
/// lines if this LibTorch cannot be used.
void print_versions();

}  // namespace demi::cli
