#include "cli/help_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>
#include <vector>

#include "cli/command_tree.h"
#include "lab/report/wrap.h"

namespace demi::cli {
namespace {

constexpr std::size_t kNames = 36;

// The names as they are typed, by comma, without the values that CLI11 writes behind a flag's.
std::string typed_names(const CLI::Option& option) {
  std::string all;
  for (const auto& [dashes, names] :
       {std::pair{"-", option.get_snames()}, {"--", option.get_lnames()}})
    for (const std::string& name : names) all += (all.empty() ? "" : ",") + (dashes + name);
  return all;
}

// "--limit INT=64", "RECIPE TEXT"; of a flag "--json", or "--layers[=N]" if it may have a value.
std::string names_of(const CLI::Option& option, bool is_positional) {
  std::string text = is_positional ? option.get_name(/*positional=*/true) : typed_names(option);
  const std::string type = type_of(option);
  if (option.get_items_expected_max() == 0)  // a flag
    return type.empty() ? text : text + "[=" + type + "]";
  if (!type.empty()) text += " " + type;
  std::string by_default = option.get_default_str();
  if (option.get_delimiter() != '\0') std::ranges::replace(by_default, ' ', option.get_delimiter());
  if (!by_default.empty()) text += "=" + by_default;
  if (option.get_expected_max() == CLI::detail::expected_max_vector_size)
    text += " ...";
  else if (option.get_expected_min() > 1)
    text += " x " + std::to_string(option.get_expected_min());
  if (option.get_required()) text += " REQUIRED";
  return text;
}

// "RECIPE", "[FILE...]".
std::string usage_of(const CLI::Option& positional) {
  std::string text = positional.get_name(/*positional=*/true);
  if (positional.get_expected_max() >= CLI::detail::expected_max_vector_size)
    text += "...";
  else if (positional.get_expected_max() > 1)
    text += fmt::format("({}x)", positional.get_expected_max());
  return positional.get_required() ? text : "[" + text + "]";
}

struct Group {
  std::string name, lines;
};

Group& named(std::vector<Group>& groups, const std::string& name) {
  const auto at = std::ranges::find(groups, name, &Group::name);
  return at != groups.end() ? *at : groups.emplace_back(Group{name});
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

std::string HelpFormat::make_help(const CLI::App* app, std::string name,
                                  CLI::AppFormatMode /*mode*/) const {
  std::string usage = "Usage: " + name + " [OPTIONS]";
  std::vector<Group> groups{{"Positionals"}};
  for (const CLI::Option* option : app->get_options()) {
    const bool is_positional = option->get_positional();
    const std::string line = entry(names_of(*option, is_positional), option->get_description());
    if (is_positional) usage += " " + usage_of(*option);
    if (!option->get_group().empty())
      named(groups, is_positional ? "Positionals" : group_of(*option)).lines += line;
  }
  const auto commands = app->get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* command : commands)
    named(groups, "Subcommands").lines += entry(command->get_name(), command->get_description());
  if (!commands.empty())
    usage += app->get_require_subcommand_min() == 0 ? " [SUBCOMMAND]" : " SUBCOMMAND";
  std::string text = paragraphs(app->get_description()) + usage + "\n";
  for (const Group& group : groups)
    if (!group.lines.empty()) text += "\n" + group.name + ":\n" + group.lines;
  return text + "\n" + paragraphs(app->get_footer());
}

std::string HelpFormat::paragraphs(const std::string& text) const {
  std::string all, line;
  for (std::istringstream lines(text); std::getline(lines, line);)
    all += line.starts_with("  ") ? line + "\n" : report::message_lines("", line, width_);
  return all;
}

}  // namespace demi::cli
