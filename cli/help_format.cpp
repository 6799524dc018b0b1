#include "cli/help_format.h"

#include <sstream>

#include "lab/report/wrap.h"

namespace demi::cli {
namespace {

constexpr std::size_t kNames = 36;

// "--limit INT=64", "RECIPE TEXT": as CLI11 2.1 writes it, which later versions do not.
std::string names_of(const CLI::Option& option, bool is_positional) {
  std::string text = option.get_name(is_positional, /*all_options=*/!is_positional);
  if (option.get_type_size() == 0) return text;  // a flag
  if (!option.get_type_name().empty()) text += " " + option.get_type_name();
  if (!option.get_default_str().empty()) text += "=" + option.get_default_str();
  if (option.get_expected_max() == CLI::detail::expected_max_vector_size)
    text += " ...";
  else if (option.get_expected_min() > 1)
    text += " x " + std::to_string(option.get_expected_min());
  if (option.get_required()) text += " REQUIRED";
  return text;
}

}  // namespace

std::string HelpFormat::entry(std::string names, const std::string& text) const {
  names.insert(0, "  ");
  if (text.empty()) return names + "\n";
  names += names.size() < kNames ? "" : "\n";
  const std::size_t begin = names.find('\n');
  const std::size_t used = begin == std::string::npos ? names.size() : 0;
  return names + std::string(kNames - used, ' ') + report::wrapped(text, kNames, width_);
}

std::string HelpFormat::make_option(const CLI::Option* option, bool is_positional) const {
  return entry(names_of(*option, is_positional), option->get_description());
}

std::string HelpFormat::make_subcommand(const CLI::App* command) const {
  return entry(command->get_name(), command->get_description());
}

std::string HelpFormat::make_description(const CLI::App* app) const {
  return paragraphs(app->get_description());
}

std::string HelpFormat::make_footer(const CLI::App* app) const {
  return paragraphs(app->get_footer());
}

std::string HelpFormat::paragraphs(const std::string& text) const {
  std::string all, line;
  for (std::istringstream lines(text); std::getline(lines, line);)
    all += line.starts_with("  ") ? line + "\n" : report::message_lines("", line, width_);
  return all;
}

}  // namespace demi::cli
