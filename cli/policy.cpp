#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
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
  bool json = false;
};

struct Line {
  OpRule rule;
  std::string by_default;  // the category without the policy
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

std::vector<Line> lines_of(const PolicyOptions& options) {
  const auto device = parse_device(options.device);
  const OpPolicy policy =
      options.file ? OpPolicy::from_file(*options.file) : OpPolicy::named(options.policy);
  std::map<std::string, std::string> defaults;
  for (const auto& rule : default_op_rules(device)) defaults[rule.op] = name_of(rule.category);
  std::vector<Line> lines;
  for (const auto& rule : policy.rules(device)) {
    const auto found = defaults.find(rule.op);
    lines.push_back({rule, found == defaults.end() ? std::string(name_of(OpCategory::unchanged))
                                                   : found->second});
  }
  return lines;
}

void print_json(const PolicyOptions& options, const std::vector<Line>& lines) {
  nlohmann::ordered_json ops = nlohmann::ordered_json::array();
  for (const auto& [rule, by_default] : lines) {
    const auto dot = rule.op.find('.');
    ops.push_back({{"name", rule.op.substr(0, dot)},
                   {"overload", dot == std::string::npos ? "" : rule.op.substr(dot + 1)},
                   {"policy", name_of(rule.category)},
                   {"default", by_default},
                   {"differs", by_default != name_of(rule.category)},
                   {"reason", rule.reason}});
  }
  const nlohmann::ordered_json all{{"device", options.device}, {"ops", ops}};
  std::printf("%s\n", all.dump(2).c_str());
}

void print_table(const std::vector<Line>& lines) {
  std::printf("%-40s %-16s %s\n", "op", "runs in", "reason");
  for (const auto& [rule, by_default] : lines) {
    const bool differs = by_default != name_of(rule.category);
    std::printf("%-40s %-16s %s%s\n", rule.op.c_str(), std::string(name_of(rule.category)).c_str(),
                rule.reason.c_str(), differs ? (" (default: " + by_default + ")").c_str() : "");
  }
  const auto changed = std::count_if(lines.begin(), lines.end(), [](const Line& line) {
    return line.by_default != name_of(line.rule.category);
  });
  std::printf(
      "\n%zu ops, %lld of them not as LibTorch lists them; ops that are not listed run as given\n",
      lines.size(), static_cast<long long>(changed));
}

}  // namespace

void add_policy(CLI::App& app) {
  auto* command =
      app.add_subcommand("policy", "What each op runs in inside an autocast region, and why");
  const auto options = std::make_shared<PolicyOptions>();
  command->add_option("--device", options->device, "cpu, cuda, xpu, mps ...");
  auto* policy =
      command->add_option("--policy", options->policy, "default, fp32_reductions or fp32_softmax");
  command
      ->add_option("--file", options->file,
                   "A policy file, a line for each op: `softmax fp32`; the categories are "
                   "lower_precision, fp32, fp32_output, promote, banned and unchanged")
      ->excludes(policy);
  command->add_flag("--json", options->json, "One JSON object to stdout");
  command->callback([options] {
    const auto lines = lines_of(*options);
    options->json ? print_json(*options, lines) : print_table(lines);
  });
}

}  // namespace demi::cli
