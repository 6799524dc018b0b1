#include "cli/help_format.h"

#include <sstream>

#include "lab/report/wrap.h"

namespace demi::cli {
namespace {
constexpr std::size_t kNames = 36;
}

std::string HelpFormat::entry(std::string names, const std::string& text) const {
  names.insert(0, "  ");
  if (text.empty()) return names + "\n";
  names += names.size() < kNames ? "" : "\n";
  const std::size_t begin = names.find('\n');
  const std::size_t used = begin == std::string::npos ? names.size() : 0;
  return names + std::string(kNames - used, ' ') + report::wrapped(text, kNames, width_);
}

std::string HelpFormat::make_option(const CLI::Option* option, bool is_positional) const {
  return entry(make_option_name(option, is_positional) + make_option_opts(option),
               make_option_desc(option));
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
