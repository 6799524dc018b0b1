#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

// The program's commands as `--help` has them, for what else is made of them: completions of shells
// and the man page.
namespace demi::cli {

struct OptionInfo {
  std::vector<std::string> names;  // "--limit"; of an argument its name
  std::string type;                // INT; empty: a flag
  std::string help;
  std::string group;  // the head that --help shows it under
  bool takes_value() const { return !type.empty(); }
};

struct CommandInfo {
  std::vector<std::string> path;  // demi, bench, recipe
  std::string help;
  std::vector<OptionInfo> options, arguments;
  std::vector<CommandInfo> commands;
  std::string name() const;  // the path, by blanks
};

/// "demi bench recipe": its name behind those of the commands above it.
std::string full_name(const CLI::App& command);

/// The head that --help shows an option under: "Options", in each version of CLI11, if none was
/// named; empty if the option is hidden.
std::string group_of(const CLI::Option& option);

/// "INT": the type without the range that CLI11 adds. A flag's is that of the value that it may
/// have; empty: none.
std::string type_of(const CLI::Option& option);

/// The tree of the whole program, from any of its commands. Hidden options are left out.
CommandInfo command_tree(const CLI::App& app);

/// The command and those below it, a command before its own.
std::vector<const CommandInfo*> all_commands(const CommandInfo& command);

}  // namespace demi::cli
