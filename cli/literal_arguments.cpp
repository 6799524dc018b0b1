#include "cli/literal_arguments.h"

#include <utility>

namespace demi::cli {
namespace {

// The first character after the blanks in front; '\0' if there is none.
char first_mark(std::string_view argument) {
  const std::size_t first = argument.find_first_not_of(' ');
  return first == std::string_view::npos ? '\0' : argument[first];
}

bool needs_blank(std::string_view argument, bool is_literal) {
  const char mark = first_mark(argument);
  return mark == '[' || (mark == '-' && (is_literal || argument.front() == ' '));
}

}  // namespace

std::vector<std::string> protected_arguments(std::vector<std::string> arguments,
                                             const std::set<std::string>& texts) {
  std::vector<std::string> all;
  bool is_literal = false, is_value = false;
  for (std::string& argument : arguments) {
    if (argument == "--" && !is_literal && !is_value) {
      is_literal = true;
      continue;
    }
    const bool is_option = !is_literal && !is_value && texts.contains(argument);
    all.push_back((needs_blank(argument, is_literal || is_value) ? " " : "") + std::move(argument));
    is_value = is_option;
  }
  return all;
}

std::string literal(const std::string& argument) {
  const char mark = first_mark(argument);
  const bool has_blank = argument.starts_with(' ') && (mark == '[' || mark == '-');
  return has_blank ? argument.substr(1) : argument;
}

}  // namespace demi::cli
