#include "cli/command_tree.h"

namespace demi::cli {
namespace {

OptionInfo info_of(const CLI::Option& option) {
  OptionInfo info{.help = option.get_description(), .group = group_of(option)};
  for (const std::string& name : option.get_snames()) info.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) info.names.push_back("--" + name);
  const bool is_flag = option.get_items_expected_max() == 0;
  if (!is_flag) info.type = type_of(option).empty() ? "TEXT" : type_of(option);
  return info;
}

CommandInfo info_of(const CLI::App& app, std::vector<std::string> path) {
  path.push_back(app.get_name());
  CommandInfo info{.path = path, .help = app.get_description()};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    OptionInfo one = info_of(*option);
    if (one.names.empty()) {
      one.names = {option->get_name(/*positional=*/true)};
      info.arguments.push_back(std::move(one));
    } else {
      info.options.push_back(std::move(one));
    }
  }
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    info.commands.push_back(info_of(*command, path));
  return info;
}

}  // namespace

std::string CommandInfo::name() const {
  std::string text;
  for (const std::string& part : path) text += (text.empty() ? "" : " ") + part;
  return text;
}

std::string group_of(const CLI::Option& option) {
  const std::string& group = option.get_group();
  return group == "OPTIONS" ? "Options" : group;
}

std::string type_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.substr(0, type.find(':'));
}

std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent ? full_name(*parent) + " " + command.get_name() : command.get_name();
}

CommandInfo command_tree(const CLI::App& app) {
  const CLI::App* root = &app;
  while (root->get_parent()) root = root->get_parent();
  return info_of(*root, {});
}

std::vector<const CommandInfo*> all_commands(const CommandInfo& command) {
  std::vector<const CommandInfo*> all{&command};
  for (const CommandInfo& below : command.commands)
    for (const CommandInfo* one : all_commands(below)) all.push_back(one);
  return all;
}

}  // namespace demi::cli
