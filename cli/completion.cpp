#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cli/command_tree.h"
#include "cli/commands.h"
#include "demi/core/error.h"
#include "lab/settings/recipe.h"

namespace demi::cli {
namespace {

// Usual values of options and arguments that have no list.
struct Values {
  const char* option;
  const char* words;
};
constexpr Values kUsual[] = {
    {"--device", "auto cpu cuda"},
    {"--precision", "mixed fp32 tf32 bf16 fp16 bf16-true fp16-true fp64"},
    {"--runs", "fp32,bf16 fp32,fp16 fp32,bf16,fp16"},
    {"--resume", "auto"},
    {"SHELL", "bash zsh fish"},
};

// The values of an option or an argument; "" where they are not known.
std::string values_of(const std::string& name) {
  for (const Values& usual : kUsual)
    if (name == usual.option) return usual.words;
  for (const settings::Setting& setting : settings::all_settings())
    if (name == "--" + setting.name) return fmt::format("{}", fmt::join(setting.accepted, " "));
  return "";
}

// The options of all commands that take a value.
std::set<std::string> options_with_values(const CommandInfo& root) {
  std::set<std::string> names;
  for (const CommandInfo* command : all_commands(root))
    for (const OptionInfo& option : command->options)
      if (option.takes_value()) names.insert(option.names.begin(), option.names.end());
  return names;
}

// The commands below it, and the recipes where one can be named.
std::vector<std::string> words_of(const CommandInfo& command) {
  std::vector<std::string> words;
  for (const CommandInfo& below : command.commands) words.push_back(below.path.back());
  for (const OptionInfo& argument : command.arguments) {
    if (argument.names.front() == "RECIPE")
      for (const settings::Recipe& recipe : settings::recipes()) words.push_back(recipe.name);
    std::istringstream known(values_of(argument.names.front()));
    for (std::string word; known >> word;) words.push_back(word);
  }
  return words;
}

std::vector<std::string> names_of_options(const CommandInfo& command) {
  std::vector<std::string> names;
  for (const OptionInfo& option : command.options)
    names.insert(names.end(), option.names.begin(), option.names.end());
  return names;
}

// "demi bench recipe" as a word of a shell's case.
std::string quoted(const std::string& text) {
  std::string all = "'";
  for (const char c : text) all += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return all + "'";
}

// Up to the first sentence's end, which a menu has room for.
std::string first_sentence(const std::string& help) {
  const std::size_t end = help.find_first_of(";[");
  std::string text = help.substr(0, end);
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

// A loop over the words before the present one, which finds the command that they name.
std::string find_path(const CommandInfo& root, const std::string& word, const std::string& loop) {
  std::string text = fmt::format("  {}\n    case \"$command {}\" in\n      ", loop, word);
  std::vector<std::string> names;
  for (const CommandInfo* command : all_commands(root))
    if (command != &root) names.push_back(quoted(command->name()));
  text += fmt::format("{}) command=\"$command {}\" ;;\n    esac\n  done\n", fmt::join(names, "|"),
                      word);
  return text;
}

std::string bash(const CommandInfo& root) {
  std::string text =
      "# bash completion for demi, made by `demi completion bash`.\n"
      "_demi() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  local command=demi i words= options=\n";
  text += find_path(root, "${COMP_WORDS[i]}", "for ((i = 1; i < COMP_CWORD; ++i)); do");
  text += "  case \"$before\" in\n";
  for (const std::string& option : options_with_values(root))  // without words: files
    text += fmt::format("    {}) COMPREPLY=($(compgen -W {} -- \"$current\")); return ;;\n", option,
                        quoted(values_of(option)));
  text += "  esac\n  case \"$command\" in\n";
  for (const CommandInfo* command : all_commands(root))
    text += fmt::format("    {})\n      words={}\n      options={} ;;\n", quoted(command->name()),
                        quoted(fmt::format("{}", fmt::join(words_of(*command), " "))),
                        quoted(fmt::format("{}", fmt::join(names_of_options(*command), " "))));
  return text +
         "  esac\n"
         "  if [[ $current == -* ]]; then words=$options; fi\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
         "}\n"
         "complete -o default -F _demi demi\n";
}

// An entry of a list that _describe shows.
std::string described(const std::string& name, const std::string& help) {
  return quoted(name + (help.empty() ? "" : ":" + first_sentence(help)));
}

std::string zsh(const CommandInfo& root) {
  std::string text =
      "#compdef demi\n"
      "# zsh completion for demi, made by `demi completion zsh`.\n"
      "_demi() {\n"
      "  local command=demi\n"
      "  local -a entries\n"
      "  integer i\n";
  text += find_path(root, "${words[i]}", "for (( i = 2; i < CURRENT; ++i )); do");
  text += "  case \"${words[CURRENT-1]}\" in\n";
  for (const std::string& option : options_with_values(root)) {
    const std::string known = values_of(option);
    text += fmt::format("    {}) {}; return ;;\n", option,
                        known.empty() ? "_files" : "compadd -- " + known);
  }
  text += "  esac\n  case \"$command\" in\n";
  for (const CommandInfo* command : all_commands(root)) {
    std::vector<std::string> words, options;
    for (const CommandInfo& below : command->commands)
      words.push_back(described(below.path.back(), below.help));
    if (command->commands.empty())
      for (const std::string& word : words_of(*command)) words.push_back(quoted(word));
    for (const OptionInfo& option : command->options)
      for (const std::string& name : option.names) options.push_back(described(name, option.help));
    text += fmt::format(
        "    {})\n      if [[ ${{words[CURRENT]}} == -* ]]; then entries=({}); else entries=({}); "
        "fi ;;\n",
        quoted(command->name()), fmt::join(options, " "), fmt::join(words, " "));
  }
  return text +
         "  esac\n"
         "  (( $#entries )) && _describe demi entries && return\n"
         "  _files\n"
         "}\n"
         "compdef _demi demi\n";
}

// When a fish line holds: the command is the one that the words name.
std::string condition_of(const CommandInfo& command) {
  if (command.path.size() == 1) return "__fish_use_subcommand";
  std::string text;
  for (std::size_t i = 1; i < command.path.size(); ++i)
    text += (text.empty() ? "" : "; and ") + ("__fish_seen_subcommand_from " + command.path[i]);
  for (const CommandInfo& below : command.commands)
    text += "; and not __fish_seen_subcommand_from " + below.path.back();
  return text;
}

std::string fish(const CommandInfo& root) {
  std::string text = "# fish completion for demi, made by `demi completion fish`.\n";
  for (const CommandInfo* command : all_commands(root)) {
    const std::string when = quoted(condition_of(*command));
    for (const CommandInfo& below : command->commands)
      text += fmt::format("complete -c demi -f -n {} -a {} -d {}\n", when, below.path.back(),
                          quoted(first_sentence(below.help)));
    if (command->commands.empty())
      if (const auto words = words_of(*command); !words.empty())
        text += fmt::format("complete -c demi -n {} -a {}\n", when,
                            quoted(fmt::format("{}", fmt::join(words, " "))));
    for (const OptionInfo& option : command->options)
      for (const std::string& name : option.names) {
        const bool is_long = name.starts_with("--");
        const std::string known = values_of(name);
        const std::string values =
            known.empty() ? option.takes_value() ? " -r" : "" : " -x -a " + quoted(known);
        text +=
            fmt::format("complete -c demi -n {} -{} {}{} -d {}\n", when, is_long ? 'l' : 's',
                        name.substr(is_long ? 2 : 1), values, quoted(first_sentence(option.help)));
      }
  }
  return text;
}

void print_completion(const CLI::App& app, const std::string& shell) {
  const CommandInfo root = command_tree(app);
  std::string text;
  if (shell == "bash") text = bash(root);
  if (shell == "zsh") text = zsh(root);
  if (shell == "fish") text = fish(root);
  if (text.empty())
    throw UsageError({.where = "completion",
                      .what = "no such shell",
                      .seen = shell,
                      .accepted = "bash, zsh, fish"});
  std::fputs(text.c_str(), stdout);
}

}  // namespace

void add_completion(CLI::App& app) {
  auto* command = app.add_subcommand("completion", "Completion of commands, options and recipes");
  const auto shell = std::make_shared<std::string>();
  command->add_option("SHELL", *shell, "bash, zsh or fish")->required();
  command->footer(
      "For one session:\n"
      "  source <(demi completion bash)\n"
      "For good, one of:\n"
      "  demi completion bash > ~/.local/share/bash-completion/completions/demi\n"
      "  demi completion zsh > \"${fpath[1]}/_demi\"\n"
      "  demi completion fish > ~/.config/fish/completions/demi.fish\n"
      "cmake --install puts all three where the shells look.");
  command->callback([&app, shell] { print_completion(app, *shell); });
}

}  // namespace demi::cli
