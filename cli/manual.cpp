#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/command_tree.h"
#include "cli/commands.h"
#include "lab/settings/config.h"

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

std::string entry_of(const OptionInfo& option) {
  std::string names;
  for (const std::string& name : option.names)
    names += (names.empty() ? "\\fB" : ", \\fB") + roff(name) + "\\fR";
  if (option.takes_value()) names += " \\fI" + roff(option.type) + "\\fR";
  return fmt::format(".TP\n{}\n{}\n", names, roff(option.help));
}

// The setting that the option sets; null: an option of the command's own.
const settings::Setting* setting_of(const OptionInfo& option) {
  for (const settings::Setting& setting : settings::all_settings()) {
    const std::string& name = option.names.front();
    if (option.group == setting.group &&
        (name == "--" + setting.name || name == "--no-" + setting.name))
      return &setting;
  }
  return nullptr;
}

// The settings that the command has: "", all, all but a few, or a few.
std::string settings_of(const CommandInfo& command) {
  std::set<std::string> has;
  for (const OptionInfo& option : command.options)
    if (const settings::Setting* setting = setting_of(option)) has.insert(setting->name);
  if (has.empty()) return "";
  std::vector<std::string> with, without;
  for (const settings::Setting& setting : settings::all_settings())
    (has.contains(setting.name) ? with : without)
        .push_back("\\fB" + roff("--" + setting.name) + "\\fR");
  if (without.empty()) return ".PP\nAnd the options of SETTINGS.\n";
  const bool has_few = with.size() < without.size();
  return fmt::format(".PP\nAnd the options of SETTINGS{} {}.\n", has_few ? ":" : ", without",
                     fmt::join(has_few ? with : without, ", "));
}

std::string section_of(const CommandInfo& command) {
  std::string text = fmt::format(".SS {}\n{}.\n", roff(synopsis_of(command)), roff(command.help));
  for (const OptionInfo& argument : command.arguments)
    text += fmt::format(".TP\n\\fI{}\\fR\n{}\n", roff(argument.names.front()), roff(argument.help));
  for (const OptionInfo& option : command.options)
    if (!setting_of(option)) text += entry_of(option);
  return text + settings_of(command);
}

std::string settings_section() {
  std::string text =
      ".SH SETTINGS\nOf a run, for the commands that say so. In brackets: what a setting is where "
      "recipe, file, environment and options say nothing.\n";
  const settings::Config by_default;
  std::string group;
  for (const settings::Setting& setting : settings::all_settings()) {
    if (setting.group != group) text += fmt::format(".SS {}\n", roff(group = setting.group));
    OptionInfo option{.names = {"--" + setting.name}, .type = setting.type, .help = setting.help};
    if (setting.is_flag) option.names.push_back("--no-" + setting.name);
    if (const std::string value = setting.get(by_default); !value.empty())
      option.help += " [" + value + "]";
    text += entry_of(option);
  }
  return text;
}

constexpr std::pair<const char*, const char*> kExamples[] = {
    {"demi train mlp --mp --steps 10", "A first training, in seconds: synthetic data, 16 bits."},
    {"demi compare fashion-cnn --limit 6000",
     "FP32 and mixed precision side by side: a table and "
     "runs/compare-fashion-cnn-001/report.html."},
    {"demi train cifar10-cnn --mp --resume auto",
     "A run that goes on where it was stopped or killed."},
    {"demi eval runs/train-cifar10-cnn-001", "Its weights on the test set, in FP32 and 16 bits."},
    {"demi train fashion-cnn --what-if fp16", "Which tensors would leave the range of fp16."},
    {"demi number 65520 --format fp16", "A value in a format, bit by bit."},
    {"demi doctor", "What this machine can do for mixed precision, and what is in the way."},
};

std::string examples_section() {
  std::string text = ".SH EXAMPLES\n";
  for (const auto& [command, meaning] : kExamples)
    text += fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(command), roff(meaning));
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
  text += settings_section() + examples_section();
  std::fputs((text + kEnd).c_str(), stdout);
}

}  // namespace

void add_manual(CLI::App& app) {
  auto* command = app.add_subcommand("manual", "The man page: demi manual | man -l -");
  command->callback([&app] { print_manual(app); });
}

}  // namespace demi::cli
