#pragma once

namespace demi::cli {

/// The `demi` program: parses the arguments, of which the first is its name, calls the library,
/// prints, and returns the exit code. Once in a process.
int run_program(int argc, char** argv);

}  // namespace demi::cli
