#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/output.h"
#include "demi/autocast/op_lists.h"
#include "demi/autocast/op_policy.h"
#include "demi/core/error.h"
#include "demi/core/nearest.h"

namespace demi::cli {
namespace {

struct PolicyOptions {
  std::string device = "cpu";
  std::string policy = "default";
  std::optional<std::string> file;
  Output output;
};

struct OpLine {
  OpRule rule;
  std::string by_default;  // the category without the policy

  bool differs() const { return by_default != name_of(rule.category); }
};

const std::map<std::string, c10::DeviceType>& devices() {
  static const std::map<std::string, c10::DeviceType> known{
      {"cpu", c10::DeviceType::CPU},   {"cuda", c10::DeviceType::CUDA},
      {"xpu", c10::DeviceType::XPU},   {"mps", c10::DeviceType::MPS},
      {"mtia", c10::DeviceType::MTIA}, {"maia", c10::DeviceType::MAIA},
      {"hpu", c10::DeviceType::HPU},   {"ipu", c10::DeviceType::IPU},
      {"xla", c10::DeviceType::XLA},   {"privateuseone", c10::DeviceType::PrivateUse1}};
  return known;
}

c10::DeviceType parse_device(const std::string& name) {
  if (const auto found = devices().find(name); found != devices().end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, type] : devices()) names.push_back(known);
  throw UsageError({.where = "policy",
                    .what = "no autocast device of that name",
                    .seen = name,
                    .advice = did_you_mean(name == "gpu" ? "cuda" : name, names)});
}

OpPolicy policy_of(const PolicyOptions& options) {
  return options.file ? OpPolicy::from_file(*options.file) : OpPolicy::named(options.policy);
}

std::vector<OpLine> lines_of(const PolicyOptions& options, const OpPolicy& policy) {
  const auto device = parse_device(options.device);
  std::map<std::string, std::string> defaults;
  for (const auto& rule : default_op_rules(device)) defaults[rule.op] = name_of(rule.category);
  std::vector<OpLine> lines;
  for (const auto& rule : policy.rules(device)) {
    const auto found = defaults.find(rule.op);
    lines.push_back({rule, found == defaults.end() ? std::string(name_of(OpCategory::unchanged))
                                                   : found->second});
  }
  return lines;
}

nlohmann::ordered_json policy_json(const PolicyOptions& options, const OpPolicy& policy,
                                   const std::vector<OpLine>& lines) {
  nlohmann::ordered_json ops = nlohmann::ordered_json::array();
  for (const OpLine& line : lines) {
    const std::string& op = line.rule.op;
    const auto dot = op.find('.');
    ops.push_back({{"name", op.substr(0, dot)},
                   {"overload", dot == std::string::npos ? "" : op.substr(dot + 1)},
                   {"policy", name_of(line.rule.category)},
                   {"default", line.by_default},
                   {"differs", line.differs()},
                   {"reason", line.rule.reason}});
  }
  return {{"device", options.device}, {"ops", ops}, {"fp32_parts", policy.fp32_parts()}};
}

report::Table policy_table(const PolicyOptions& options, const OpPolicy& policy,
                           const std::vector<OpLine>& lines) {
  report::Table table{.title = "ops in an autocast region on " + options.device};
  for (const char* name : {"op", "runs in", "reason"})
    table.columns.push_back({.name = name, .align = report::Align::kLeft});
  for (const OpLine& line : lines)
    table.rows.push_back({line.rule.op, std::string(name_of(line.rule.category)),
                          line.differs() ? line.rule.reason + " (default: " + line.by_default + ")"
                                         : line.rule.reason});
  table.notes = {
      fmt::format("{} ops, {} of them not as LibTorch lists them. Ops that are not listed "
                  "run in the dtype of their inputs.",
                  lines.size(), std::ranges::count_if(lines, &OpLine::differs))};
  for (const std::string& part : policy.fp32_parts())
    table.notes.push_back("The part " + part + " of the model computes in FP32.");
  return table;
}

}  // namespace

void add_policy(CLI::App& app) {
  auto* command =
      app.add_subcommand("policy", "What each op runs in inside an autocast region, and why");
  const auto options = std::make_shared<PolicyOptions>();
  command
      ->add_option("--device", options->device,
                   "Device type whose ops are listed: cpu, cuda, xpu ...")
      ->capture_default_str();
  auto* policy = command
                     ->add_option("--policy", options->policy,
                                  "Op policy: default, fp32_reductions or fp32_softmax")
                     ->capture_default_str();
  command
      ->add_option("--file", options->file,
                   "Policy file with a line for each op: `softmax fp32`; the categories are "
                   "lower_precision, fp32, fp32_output, promote, banned and unchanged; `part fc "
                   "fp32` keeps a part of the model in FP32")
      ->excludes(policy);
  options->output.add_to(*command);
  command->callback([options] {
    const OpPolicy policy = policy_of(*options);
    const auto lines = lines_of(*options, policy);
    options->output.show({policy_table(*options, policy, lines)},
                         policy_json(*options, policy, lines));
  });
}

}  // namespace demi::cli
