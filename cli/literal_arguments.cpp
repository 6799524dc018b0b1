#include "cli/literal_arguments.h"

#include <utility>

namespace demi::cli {
namespace {

// What comes after the blanks in front; '\0': nothing.
char first_mark(std::string_view argument) {
  const std::size_t first = argument.find_first_not_of(' ');
  return first == std::string_view::npos ? '\0' : argument[first];
}

bool needs_blank(std::string_view argument, bool is_literal) {
  const char mark = first_mark(argument);
  return mark == '[' || (mark == '-' && (is_literal || argument.front() == ' '));
}

}  // namespace

std::vector<std::string> protected_arguments(std::vector<std::string> arguments) {
  std::vector<std::string> all;
  bool is_literal = false;
  for (std::string& argument : arguments) {
    if (argument == "--" && !is_literal) {
      is_literal = true;
      continue;
    }
    all.push_back((needs_blank(argument, is_literal) ? " " : "") + std::move(argument));
  }
  return all;
}

std::string literal(const std::string& argument) {
  const char mark = first_mark(argument);
  const bool has_blank = argument.starts_with(' ') && (mark == '[' || mark == '-');
  return has_blank ? argument.substr(1) : argument;
}

}  // namespace demi::cli
