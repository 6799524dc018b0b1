#include "cli/option_values.h"

#include <charconv>
#include <cstdint>
#include <string_view>
#include <utility>

namespace demi::cli {
namespace {

const CLI::App* command_of(const CLI::App& app, const std::string& name) {
  const auto found =
      app.get_subcommands([&](const CLI::App* one) { return one->check_name(name); });
  return found.empty() ? nullptr : found.front();
}

bool has_value(const CLI::App& app, const std::string& name) {
  const CLI::Option* option = app.get_option_no_throw(name);
  return option && option->get_items_expected_max() > 0;
}

struct WholeNumber {
  int64_t number = 0;
  std::errc error = {};  // invalid_argument, too, for what has more than the number
};

WholeNumber parsed(std::string_view digits) {
  while (digits.starts_with(' ')) digits.remove_prefix(1);  // of a protected argument
  if (digits.starts_with('+')) digits.remove_prefix(1);
  WholeNumber result;
  const char* const last = digits.data() + digits.size();
  const auto [end, error] = std::from_chars(digits.data(), last, result.number);
  result.error = error == std::errc() && end != last ? std::errc::invalid_argument : error;
  return result;
}

std::string why_empty(const std::string& text) { return text.empty() ? kEmptyValue : ""; }

std::string why_out_of_range(const std::string& text) {
  if (parsed(text).error != std::errc::result_out_of_range) return "";
  return "out of range; seen: " + text + "; accepted: whole numbers of 64 bits, " +
         std::to_string(INT64_MIN) + " to " + std::to_string(INT64_MAX);
}

}  // namespace

std::vector<std::string> with_empty_values(const std::vector<std::string>& arguments,
                                           const CLI::App& app) {
  std::vector<std::string> all;
  const CLI::App* command = &app;
  bool is_literal = false, is_value = false;
  for (const std::string& argument : arguments) {
    if (std::exchange(is_value, false)) {  // the value of the option before it, in any form
      all.push_back(argument);
      continue;
    }
    is_literal = is_literal || argument == "--";
    const CLI::App* below = command_of(*command, argument);
    if (below && !is_literal) command = below;
    const bool is_empty = !is_literal && argument.starts_with("--") && argument.ends_with('=');
    const std::string name = argument.substr(0, argument.size() - (is_empty ? 1 : 0));
    const bool takes_value = has_value(*command, name);
    if (is_empty && !takes_value && command->get_option_no_throw(name))
      throw CLI::ValidationError(name, kEmptyValue);
    all.push_back(is_empty && takes_value ? name : argument);
    if (all.back().size() < argument.size())
      all.emplace_back();
    else
      is_value = !is_literal && argument.starts_with("--") && has_value(*command, argument);
  }
  return all;
}

CLI::Validator whole_number(int64_t least, int64_t most) {
  const auto why = [least, most](std::string& text) -> std::string {
    const auto [number, error] = parsed(text);
    if (text.empty()) return kEmptyValue;
    if (error == std::errc::result_out_of_range) return why_out_of_range(text);
    const bool is_none = error != std::errc();
    if (!is_none && number >= least && number <= most) return "";
    const char* what = is_none ? "not a whole number" : number < least ? "too small" : "too large";
    return std::string(what) + "; seen: " + text + "; accepted: " + std::to_string(least) + " to " +
           std::to_string(most);
  };
  return {why, ""};
}

void check_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const bool is_whole = option->get_type_name() == "INT";
    if (is_whole || option->get_type_name() == "FLOAT")
      option->check(CLI::Validator(why_empty, ""));
    if (is_whole) option->check(CLI::Validator(why_out_of_range, ""));
  }
  for (const char* name : {"--runs", "--precision", "--sweep", "--run-dir"})
    if (CLI::Option* option = app.get_option_no_throw(name))
      option->check(CLI::Validator(why_empty, ""));
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    check_values(*command);
}

}  // namespace demi::cli
