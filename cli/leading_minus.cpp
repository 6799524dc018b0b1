#include "cli/leading_minus.h"

#include <cctype>
#include <string_view>

namespace demi::cli {
namespace {

bool is_negative_value(std::string_view argument) {
  if (!argument.starts_with('-') || argument == "-h" || argument == "--") return false;
  const bool is_word =
      argument.starts_with("--") && std::isalpha(static_cast<unsigned char>(argument[2]));
  return !is_word;
}

}  // namespace

std::vector<std::string> arguments_for_parser(int argc, const char* const* argv) {
  std::vector<std::string> reversed;
  const bool has_values = argc > 1 && std::string_view(argv[1]) == "number";
  for (int i = argc - 1; i >= 1; --i) {
    reversed.push_back((has_values && is_negative_value(argv[i]) ? " " : "") +
                       std::string(argv[i]));
  }
  return reversed;
}

}  // namespace demi::cli
