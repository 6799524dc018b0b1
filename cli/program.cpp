#include "cli/program.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command_tree.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/help_format.h"
#include "cli/literal_arguments.h"
#include "cli/option_values.h"
#include "cli/say.h"
#include "cli/standard_streams.h"
#include "cli/stop.h"
#include "cli/version.h"
#include "demi/backends/backends.h"
#include "demi/core/libtorch.h"
#include "demi/core/nearest.h"
#include "lab/report/terminal.h"
#include "lab/report/wrap.h"
#include "lab/settings/config.h"

namespace demi::cli {
namespace {

// LibTorch's and demi's warnings as lines of their own, each once, without a place in some source
// file. The warning of a region's slow dtype is left out: the commands note it themselves before
// they train.
class PlainWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (warning.msg().starts_with("[autocast.Autocast]") || !said_.insert(warning.msg()).second)
      return;
    say("warning: ", warning.msg());
  }

 private:
  std::set<std::string> said_;
};

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

std::vector<std::string> names_of(const CLI::App& app) {
  std::vector<std::string> names = commands_of(app);
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

// Words that users of other programs type, and their meaning here, if the command has `option`.
struct Meant {
  std::string_view word, option, text;
};
constexpr Meant kMeant[] = {
    {"--mp", "--runs", "--runs fp32,bf16"},
    {"--mixed-precision", "--runs", "--runs fp32,bf16"},
    {"--amp", "--mp", "--mp"},
    {"--amp", "--runs", "--runs fp32,bf16"},
    {"--half", "--precision", "--precision fp16"},
    {"--half", "--runs", "--runs fp32,fp16"},
    {"--fp16", "--precision", "--precision fp16"},
    {"--fp16", "--runs", "--runs fp32,fp16"},
    {"--bf16", "--precision", "--precision bf16"},
    {"--bf16", "--runs", "--runs fp32,bf16"},
    {"--precision", "--runs", "--runs fp32,bf16"},
    {"--loss-scale", "--runs", "--runs fp32,fp16:scale=128"},
    {"--gpu", "--device", "--device cuda"},
    {"--cuda", "--device", "--device cuda"},
    {"--cpu", "--device", "--device cpu"},
    {"fit", "", "train"},
    {"evaluate", "", "eval"},
    {"test", "", "eval"},
    {"validate", "", "eval"},
    {"infer", "", "predict"},
    {"classify", "", "predict"},
    {"sample", "", "generate"},
    {"write", "", "generate"},
    {"--max-new-tokens", "--prompt", "--length"},
    {"--max_new_tokens", "--prompt", "--length"},
    {"--start", "--prompt", "--prompt"},
    {"--num-samples", "--prompt", "--samples"},
    {"--num_samples", "--prompt", "--samples"},
    {"benchmark", "", "bench"},
};

std::string by_meaning(const CLI::App& command, const std::string& word) {
  const std::vector<std::string> names = names_of(command);
  const auto has = [&](std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  for (const Meant& meant : kMeant)
    if (word == meant.word && has(meant.option.empty() ? meant.text : meant.option))
      return std::string(meant.text);
  if (!word.starts_with("--")) return "";
  const std::string setting = "--" + settings::setting_meant(word.substr(2));
  return has(setting) ? setting : "";
}

// "unknown command bench-matmul; known: compare, train, ..."
std::string unexpected(const CLI::App& command, const std::string& word) {
  const std::vector<std::string> commands = commands_of(command);
  const char* kind = word.starts_with("-") ? "option" : commands.empty() ? "argument" : "command";
  const std::string text = std::string("unknown ") + kind + " " + word;
  std::string near = by_meaning(command, word);
  if (near.empty()) near = nearest(word, names_of(command));
  if (!near.empty()) return text + "; did you mean " + near + "?";
  if (commands.empty() || word.starts_with("-")) return text;
  std::string known;
  for (const std::string& one : commands) known += (known.empty() ? "" : ", ") + one;
  return text + "; known: " + known;
}

// The command that was being parsed when it went wrong: the deepest one that was named.
const CLI::App& deepest_parsed(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : deepest_parsed(*parsed.back());
}

// The first word that nothing took. The order in which CLI11 lists them in its message differs
// between its versions.
std::string first_unexpected(const CLI::App& command) {
  for (const CLI::App* app = &command; app; app = app->get_parent())
    if (const std::vector<std::string> left = app->remaining(); !left.empty())
      return left.front().substr(0, left.front().find('='));
  return "";
}

// Whether an argument begins with `word` only behind "--", where none is an option.
bool is_behind_mark(const std::string& word, const std::vector<std::string>& arguments) {
  const auto mark = std::ranges::find(arguments, "--");
  const auto is_word = [&](const std::string& argument) { return argument.starts_with(word); };
  return mark != arguments.end() && std::none_of(arguments.begin(), mark, is_word);
}

// "--seconds: not a number; seen: abc; accepted: a number such as 0.1 or 1e-3". What CLI11 could
// not convert is "Could not convert: --seconds = abc" in its words.
std::string not_converted(const CLI::App& command, std::string text) {
  const std::size_t name = text.find("--"), value = text.find(" = ", name);
  if (value == std::string::npos) return text;
  const std::string option = text.substr(name, value - name), seen = text.substr(value + 3);
  const CLI::Option* given = command.get_option_no_throw(option);
  if (!given) return text;
  if (given->get_type_name() == "INT")
    return option + ": not a whole number; seen: " + seen + "; accepted: a number such as 10";
  if (given->get_type_name() == "FLOAT")
    return option + ": not a number; seen: " + seen + "; accepted: a number such as 0.1 or 1e-3";
  return text;
}

int report_usage_error(const CLI::App& app, const CLI::ParseError& error,
                       const std::vector<std::string>& arguments) {
  std::string text = error.what();
  const CLI::App& command = deepest_parsed(app);
  if (dynamic_cast<const CLI::ConversionError*>(&error)) text = not_converted(command, text);
  if (dynamic_cast<const CLI::ExtrasError*>(&error)) {
    const std::string word = first_unexpected(command);
    const bool is_literal = word.starts_with("-") && is_behind_mark(word, arguments);
    text = is_literal
               ? "unknown argument " + word + ": behind -- nothing is an option; leave -- out"
               : unexpected(command, word);
  }
  say("demi: ", text);
  say("see: ", full_name(command) + " --help");
  return kUsage;
}

bool is_negative_value(std::string_view argument) {
  if (!argument.starts_with('-') || argument == "-h" || argument == "--") return false;
  const bool is_word =
      argument.starts_with("--") && std::isalpha(static_cast<unsigned char>(argument[2]));
  return !is_word;
}

// The arguments in reverse order, as CLI::App::parse has them, without the program's name. After
// `number` an argument such as -1, -inf or -(1+2) gets a blank in front: it is a value, and CLI11
// would read -i or -( as the name of an option. -h and --words stay. Arguments of `predict` and
// `--prompt` may be any text.
std::vector<std::string> arguments_for_parser(const std::vector<std::string>& arguments) {
  const std::string command = arguments.empty() ? "" : arguments.front();
  if (command == "predict" || command == "generate") {
    std::set<std::string> texts;
    if (command == "generate") texts.insert("--prompt");
    std::vector<std::string> all = protected_arguments(arguments, texts);
    return {all.rbegin(), all.rend()};
  }
  std::vector<std::string> reversed;
  const bool has_values = command == "number";
  for (auto argument = arguments.rbegin(); argument != arguments.rend(); ++argument)
    reversed.push_back((has_values && is_negative_value(*argument) ? " " : "") + *argument);
  return reversed;
}

// "demi help train" is "demi train --help".
std::vector<std::string> without_help_command(std::vector<std::string> reversed) {
  if (reversed.empty() || reversed.back() != "help") return reversed;
  reversed.pop_back();
  reversed.insert(reversed.begin(), "--help");
  return reversed;
}

int run(int argc, char** argv) {
  CLI::App app{"Mixed precision training for C++, on LibTorch", "demi"};
  app.set_version_flag(
      "--version", "demi " DEMI_VERSION,
      "Print the version and exit; with --verbose those of LibTorch and its parts, "
      "and what they run on");
  app.formatter(
      std::make_shared<HelpFormat>(report::help_width(report::Terminal::of(STDOUT_FILENO))));
  // Scripts append what they change: of one option given twice the last counts.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_commands(app);
  check_values(app);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (asks_for_versions(arguments)) {
      print_versions();
      return kDone;
    }
    require_libtorch();
    app.parse(without_help_command(arguments_for_parser(with_empty_values(arguments, app))));
    return kDone;
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    return report_usage_error(app, error, arguments);
  } catch (const Exit& exit) {
    return exit.code;
  } catch (const std::exception& error) {
    return report_failure(error);
  }
}

}  // namespace

int run_program(int argc, char** argv) {
  start_clock();
  open_standard_streams();
  keep_memory();
  catch_signals();
  PlainWarnings warnings;
  const c10::WarningUtils::WarningHandlerGuard plain(&warnings);
  return flush_results(run(argc, argv));
}

}  // namespace demi::cli
