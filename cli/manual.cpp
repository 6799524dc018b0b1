#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "cli/command_tree.h"
#include "cli/commands.h"

namespace demi::cli {
namespace {

// Text as roff has it: a line that begins with a dot or a quote would be a request.
std::string roff(const std::string& text) {
  std::string all;
  for (const char c : text) {
    if ((c == '.' || c == '\'') && (all.empty() || all.back() == '\n')) all += "\\&";
    if (c == '\\')
      all += "\\e";
    else if (c == '-')
      all += "\\-";
    else
      all += c;
  }
  return all;
}

std::string synopsis_of(const CommandInfo& command) {
  std::string text = command.name();
  if (!command.commands.empty()) return text + " COMMAND [OPTIONS]";
  if (!command.options.empty()) text += " [OPTIONS]";
  for (const OptionInfo& argument : command.arguments) text += " [" + argument.names.front() + "]";
  return text;
}

std::string section_of(const CommandInfo& command) {
  std::string text = fmt::format(".SS {}\n{}.\n", roff(synopsis_of(command)), roff(command.help));
  for (const OptionInfo& argument : command.arguments)
    text += fmt::format(".TP\n\\fI{}\\fR\n{}\n", roff(argument.names.front()), roff(argument.help));
  for (const OptionInfo& option : command.options) {
    std::string names;
    for (const std::string& name : option.names)
      names += (names.empty() ? "\\fB" : ", \\fB") + roff(name) + "\\fR";
    if (option.takes_value()) names += " \\fI" + roff(option.type) + "\\fR";
    text += fmt::format(".TP\n{}\n{}\n", names, roff(option.help));
  }
  return text;
}

constexpr const char* kEnd = R"(.SH ENVIRONMENT
A setting that an option \fB\-\-name\fR has is read from \fBDEMI_NAME\fR, too. \fBdemi doctor\fR lists all other variables.
.SH EXIT STATUS
.TP
0
done
.TP
1
training failed
.TP
2
usage: an unknown command, option or value
.TP
3
data that are missing or damaged
.TP
4
a device that is not here
.TP
75
\fB\-\-stop\-after\fR: the time is over and the run can go on
.TP
128 + N
ended by signal N
.SH SEE ALSO
The pages in docs/ of the sources.
)";

void print_manual(const CLI::App& app) {
  const CommandInfo root = command_tree(app);
  std::string text = fmt::format(
      ".TH DEMI 1 \"\" \"demi {}\"\n.SH NAME\ndemi \\- {}\n.SH SYNOPSIS\n\\fBdemi\\fR COMMAND "
      "[OPTIONS]\n.SH COMMANDS\n",
      DEMI_VERSION, roff(root.help));
  for (const CommandInfo* command : all_commands(root))
    if (command != &root) text += section_of(*command);
  std::fputs((text + kEnd).c_str(), stdout);
}

}  // namespace

void add_manual(CLI::App& app) {
  auto* command = app.add_subcommand("manual", "The man page: demi manual | man -l -");
  command->callback([&app] { print_manual(app); });
}

}  // namespace demi::cli
