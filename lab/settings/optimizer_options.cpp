#include "lab/settings/optimizer_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/error.h"
#include "demi/core/nearest.h"

namespace demi::settings {
namespace {

constexpr auto kWhere = "--optimizer-options";
constexpr std::string_view kSettings[] = {"lr", "momentum", "nesterov", "weight_decay"};

std::optional<double> number_in(std::string_view text) {
  if (text == "true") return 1;
  if (text == "false") return 0;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return {};
  return value;
}

std::string state_name(std::string_view name) {
  if (name == "beta1") return "betas.0";
  if (name == "beta2") return "betas.1";
  return std::string(name);
}

std::string shown_name(const std::string& name) {
  return name == "betas.0" ? "beta1" : name == "betas.1" ? "beta2" : name;
}

/// The options of a group that --optimizer-options sets, by the names that it has for them. Those
/// of kSettings are not among them, but for Muon's nesterov: --nesterov is about sgd, and Muon has
/// Nesterov's momentum unless it is told otherwise.
std::map<std::string, std::string> names_in(const StateDict& group) {
  const bool is_muons = group.contains("ns_steps");
  std::map<std::string, std::string> names;
  for (const auto& [name, value] : group) {
    const bool is_setting = std::ranges::find(kSettings, name) != std::end(kSettings);
    if (is_setting && !(is_muons && name == "nesterov")) continue;
    names[is_muons && name == "eps" ? "muon_eps" : shown_name(name)] = name;
  }
  return names;
}

bool any_has(const std::vector<StateDict>& groups, const std::string& name) {
  return std::ranges::any_of(groups, [&](const StateDict& group) { return group.contains(name); });
}

void add(StateDict& options, std::string_view item) {
  const std::size_t equals = item.find('=');
  const std::string_view name = item.substr(0, equals);
  const auto value =
      equals == std::string_view::npos ? std::nullopt : number_in(item.substr(equals + 1));
  if (name.empty() || !value)
    throw UsageError({.where = kWhere,
                      .what = "an option has no number",
                      .seen = item,
                      .accepted = "NAME=NUMBER by comma, as eps=1e-6,beta2=0.95"});
  if (!options.emplace(state_name(name), *value).second)
    throw UsageError({.where = kWhere, .what = "an option is given twice", .seen = name});
}

[[noreturn]] void refuse_option(const optim::Optimizer& optimizer, const std::string& name) {
  std::vector<std::string> known;
  for (const StateDict& group : optimizer.group_numbers()) {
    if (group.contains(name)) {
      std::string setting = "--" + name;
      std::ranges::replace(setting, '_', '-');
      throw UsageError({.where = kWhere,
                        .what = "the option is a setting of its own",
                        .seen = name,
                        .advice = "give " + setting});
    }
    for (const auto& [shown, own] : names_in(group)) known.push_back(shown);
  }
  throw UsageError({.where = kWhere,
                    .what = std::string(optimizer.rule_name()) + " has no such option",
                    .seen = name,
                    .advice = did_you_mean(name, known)});
}

}  // namespace

StateDict read_optimizer_options(std::string_view text) {
  StateDict options;
  if (text.empty()) return options;
  for (;;) {
    const std::size_t comma = text.find(',');
    add(options, text.substr(0, comma));
    if (comma == std::string_view::npos) return options;
    text.remove_prefix(comma + 1);
  }
}

void set_optimizer_options(optim::Optimizer& optimizer, std::string_view text) {
  const StateDict options = read_optimizer_options(text);
  if (options.empty()) return;
  std::vector<StateDict> groups = optimizer.group_numbers();
  for (const auto& [state_name, value] : options) {
    const std::string name = shown_name(state_name);
    bool is_found = false;
    for (StateDict& group : groups)
      if (const auto own = names_in(group).extract(name)) {
        group[own.mapped()] = value;
        is_found = true;
      }
    if (!is_found) refuse_option(optimizer, name);
  }
  optimizer.prepare_state(optimizer.state_tensors(), groups)();
}

void set_betas(optim::Optimizer& optimizer, std::string_view text) {
  if (text.empty()) return;
  const std::size_t comma = text.find(',');
  const auto first = number_in(text.substr(0, comma));
  const auto second =
      comma == std::string_view::npos ? std::nullopt : number_in(text.substr(comma + 1));
  if (!first || !second)
    throw UsageError({.where = "--betas",
                      .what = "these are not two numbers",
                      .seen = text,
                      .accepted = "two numbers in [0, 1) by comma, as 0.9,0.95"});
  std::vector<StateDict> groups = optimizer.group_numbers();
  if (!any_has(groups, "betas.1"))
    throw UsageError({.where = "--betas",
                      .what = std::string(optimizer.rule_name()) + " has no two decay rates",
                      .seen = text,
                      .advice = "leave out --betas, or give it no value: --betas="});
  for (StateDict& group : groups) {
    if (!group.contains("betas.1")) continue;
    group["betas.0"] = *first;
    group["betas.1"] = *second;
  }
  optimizer.prepare_state(optimizer.state_tensors(), groups)();
}

}  // namespace demi::settings
