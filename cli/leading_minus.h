#pragma once

#include <string>
#include <vector>

namespace demi::cli {

/// The arguments in reverse order, as CLI::App::parse has them, without the program's name. After
/// `number` one such as -1, -inf or -(1+2) has a blank in front: it is a value, and CLI11 would
/// read -i or -( as the name of an option. -h and --words stay.
std::vector<std::string> arguments_for_parser(int argc, const char* const* argv);

}  // namespace demi::cli
