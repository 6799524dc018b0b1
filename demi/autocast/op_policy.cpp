#include "demi/autocast/op_policy.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <system_error>

#include "demi/autocast/op_lists.h"
#include "demi/core/atomic_file.h"
#include "demi/core/dtype.h"
#include "demi/core/error.h"
#include "demi/core/nearest.h"
#include "demi/quantization/recipe.h"

namespace demi {
namespace {

constexpr std::array<std::string_view, 6> kCategories{"lower_precision", "fp32",   "fp32_output",
                                                      "promote",         "banned", "unchanged"};

std::vector<std::string> category_names() { return {kCategories.begin(), kCategories.end()}; }

// "softmax.int" is namespace aten, op softmax, overload int; "softmax" names all overloads.
struct OpName {
  std::string base;  // with namespace
  std::string overload;
  bool names_overload;
};

OpName split(std::string_view op) {
  const auto colons = op.find("::");
  const auto dot = op.find('.');
  const std::string prefix = colons == std::string_view::npos ? "aten::" : "";
  if (dot == std::string_view::npos) return {prefix + std::string(op), "", false};
  return {prefix + std::string(op.substr(0, dot)), std::string(op.substr(dot + 1)), true};
}

std::string rule_name(const c10::OperatorName& name) {
  const std::string base = name.name.starts_with("aten::") ? name.name.substr(6) : name.name;
  return name.overload_name.empty() ? base : base + "." + name.overload_name;
}

bool can_have_rule(const c10::FunctionSchema& schema) {
  const auto takes_tensor = [](const c10::Argument& argument) {
    return argument.type()->str().find("Tensor") != std::string::npos;
  };
  return !schema.is_mutable() &&
         std::any_of(schema.arguments().begin(), schema.arguments().end(), takes_tensor);
}

// The name that means this overload alone: "mm." is that of mm without a name.
std::string exact(const std::string& op) {
  return op.find('.') == std::string::npos ? op + "." : op;
}

std::vector<c10::OperatorHandle> handles_of(std::string_view op) {
  const OpName wanted = split(op);
  std::vector<c10::OperatorHandle> found;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name != wanted.base ||
        (wanted.names_overload && name.overload_name != wanted.overload))
      continue;
    if (const auto handle = c10::Dispatcher::singleton().findSchema(name)) found.push_back(*handle);
  }
  return found;
}

std::vector<std::string> overloads_of(std::string_view op) {
  std::vector<std::string> found;
  for (const auto& handle : handles_of(op))
    if (can_have_rule(handle.schema())) found.push_back(rule_name(handle.operator_name()));
  std::sort(found.begin(), found.end());
  return found;
}

std::string nearest_op(std::string_view op) {
  std::vector<std::string> known;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames())
    if (const auto handle = c10::Dispatcher::singleton().findSchema(name);
        handle && can_have_rule(handle->schema()))
      known.push_back(op.find('.') == std::string_view::npos ? rule_name({name.name, ""})
                                                             : rule_name(name));
  const std::string near = nearest(op, known);
  if (!near.empty()) return "did you mean " + near + "?";
  return op.find("::") == std::string_view::npos
             ? "default_op_rules() lists the ops that have a rule"
             : "an operator of yours is known once the library that registers it is loaded";
}

[[noreturn]] void refuse_op(std::string_view op) {
  const auto handles = handles_of(op);
  if (handles.empty())
    refuse({.where = "OpPolicy.set",
            .what = "no op of that name",
            .seen = op,
            .advice = nearest_op(op)});
  const bool writes = std::all_of(handles.begin(), handles.end(),
                                  [](const auto& handle) { return handle.schema().is_mutable(); });
  refuse({.where = "OpPolicy.set",
          .what = writes ? "the op writes to its arguments, and autocast never casts those"
                         : "the op takes no tensor",
          .seen = op,
          .advice = writes ? nearest_op(op) : ""});
}

[[noreturn]] void cannot_read(const std::filesystem::path& path) {
  throw DataError({.where = "OpPolicy.from_file",
                   .what = "the policy file cannot be read",
                   .seen = path.string() + ": " + std::generic_category().message(errno)});
}

// "[OpPolicy.set] no op ..." is for the caller of set().
std::string without_module(const std::string& message) {
  return message.starts_with('[') ? message.substr(message.find("] ") + 2) : message;
}

// The text behind '#', without blanks around it.
std::string comment_of(const std::string& line) {
  const auto mark = line.find('#');
  if (mark == std::string::npos) return "";
  const auto first = line.find_first_not_of(" \t", mark + 1);
  const auto last = line.find_last_not_of(" \t\r");
  return first == std::string::npos ? "" : line.substr(first, last + 1 - first);
}

constexpr std::string_view kGaps = " \t\r=";

// Takes the last word off the line.
std::string_view take_last(std::string_view& line) {
  line = line.substr(0, line.find_last_not_of(kGaps) + 1);
  const std::size_t gap = line.find_last_of(kGaps);
  const std::size_t begin = gap == std::string_view::npos ? 0 : gap + 1;
  const std::string_view word = line.substr(begin);
  line = line.substr(0, begin);
  return word;
}

std::optional<std::int64_t> read_step(std::string_view word) {
  std::int64_t step = 0;
  const auto [end, failure] = std::from_chars(word.data(), word.data() + word.size(), step);
  if (failure != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return step;
}

/// A part's name may hold blanks: it is all of the text between the first word and the treatment.
void read_part(OpPolicy& policy, std::string_view line) {
  const std::string_view first = "part";
  const auto refuse_form = [&] {
    refuse({.what = "a line of a part holds its name and how it computes",
            .seen = line,
            .advice = "as in: part encoder.norm fp32"});
  };
  std::string_view name = line.substr(line.find(first) + first.size());
  std::string_view treatment = take_last(name);
  std::optional<std::int64_t> until;
  std::string_view shorter = name;
  if (take_last(shorter) == "until") {
    until = read_step(treatment);
    if (!until) refuse_form();
    name = shorter;
    treatment = take_last(name);
  }
  const std::size_t begin = name.find_first_not_of(kGaps), end = name.find_last_not_of(kGaps);
  if (begin == std::string_view::npos || treatment.empty()) refuse_form();
  name = name.substr(begin, end + 1 - begin);
  if (name.ends_with(std::string(" ").append(treatment))) refuse_form();
  policy.set_part(name, treatment, until);
}

void read_line(OpPolicy& policy, const std::string& text) {
  const std::string written = text.substr(0, text.find('#'));
  std::string line = written;
  std::replace(line.begin(), line.end(), '=', ' ');
  std::istringstream stream(line);
  const std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
  if (words.empty()) return;
  if (words[0] == "part") return read_part(policy, written);
  if (words.size() != 2)
    refuse({.what = "a line holds an op and a category",
            .seen = line,
            .advice = "as in: softmax fp32"});
  if (words[0] != "policy") {
    const std::string reason = comment_of(text);
    policy.set(words[0], parse_op_category(words[1]),
               reason.empty() ? "from the policy file" : reason);
    return;
  }
  const OpPolicy base = OpPolicy::named(words[1]);
  for (const auto& rule : base.changes()) policy.set(exact(rule.op), rule.category, rule.reason);
}

}  // namespace

std::string_view name_of(OpCategory category) {
  return kCategories[static_cast<std::size_t>(category)];
}

OpCategory parse_op_category(std::string_view name) {
  for (std::size_t i = 0; i < kCategories.size(); ++i)
    if (kCategories[i] == name) return static_cast<OpCategory>(i);
  // Suggests the category of a dtype, which users often write in its place.
  const auto dtype = find_dtype(name);
  const bool is_low = dtype == Dtype::fp16 || dtype == Dtype::bf16;
  const auto near = is_low                 ? kCategories[0]
                    : dtype == Dtype::fp32 ? kCategories[1]
                                           : std::string_view();
  std::string advice = did_you_mean(near.empty() ? name : near, category_names());
  if (is_low) advice += "; lower_precision runs in the region's dtype";
  refuse({.where = "autocast.OpPolicy",
          .what = "no category of that name",
          .seen = name,
          .advice = advice});
}

std::vector<std::string> OpPolicy::names() {
  return {"default", "fp32_reductions", "fp32_softmax"};
}

OpPolicy OpPolicy::named(std::string_view name) {
  OpPolicy policy;
  if (name == "default") return policy;
  if (name == "fp32_reductions") {
    policy.changes_ = cuda_only_fp32_rules();
    return policy;
  }
  if (name == "fp32_softmax") {
    constexpr std::string_view reason = "Keras keeps the softmax output in FP32";
    return policy.set("softmax.int", OpCategory::fp32_output, reason)
        .set("log_softmax.int", OpCategory::fp32_output, reason);
  }
  refuse({.where = "OpPolicy.named",
          .what = "no policy of that name",
          .seen = name,
          .advice = did_you_mean(name, names())});
}

namespace {

OpPolicy read(const char* where, const std::string& source, std::istream& lines) {
  OpPolicy policy;
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    try {
      read_line(policy, line);
    } catch (const UsageError& error) {
      refuse({.where = where,
              .what = source + ":" + std::to_string(number) + ": " + without_module(error.what())});
    }
  }
  return policy;
}

}  // namespace

OpPolicy OpPolicy::from_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) cannot_read(path);
  OpPolicy policy = read("OpPolicy.from_file", path.string(), file);
  if (file.bad()) cannot_read(path);
  return policy;
}

OpPolicy OpPolicy::from_text(const std::string& text, const std::string& source) {
  std::istringstream lines(text);
  return read("OpPolicy.from_text", source, lines);
}

namespace {

// The rules of an op's overloads, where one line can name them together: each has a rule, and they
// are alike.
bool is_one_line(const std::vector<OpRule>& changes, const OpRule& rule, const std::string& base) {
  const auto overloads = overloads_of(base);
  return std::ranges::all_of(overloads, [&](const std::string& op) {
    return std::ranges::any_of(changes, [&](const OpRule& other) {
      return other.op == op && other.category == rule.category && other.reason == rule.reason;
    });
  });
}

std::string line_of(const std::string& op, const OpRule& rule) {
  std::string reason = rule.reason;
  std::replace(reason.begin(), reason.end(), '\n', ' ');
  return op + " " + std::string(name_of(rule.category)) + (reason.empty() ? "" : "  # " + reason) +
         "\n";
}

}  // namespace

std::string OpPolicy::to_string() const {
  std::string text;
  std::set<std::string> written;
  for (const OpRule& rule : changes_) {
    const std::string base = rule.op.substr(0, rule.op.find('.'));
    const bool together = is_one_line(changes_, rule, base);
    if (written.insert(together ? base : exact(rule.op)).second)
      text += line_of(together ? base : exact(rule.op), rule);
  }
  for (const PartRule& rule : parts_)
    text += "part " + rule.part + " " + rule.treatment +
            (rule.until ? " until " + std::to_string(*rule.until) : "") + "\n";
  return text;
}

void OpPolicy::to_file(const std::filesystem::path& path) const {
  write_atomically(path, to_string(), "name another file");
}

OpPolicy& OpPolicy::set_part(std::string_view part, std::string_view treatment,
                             std::optional<std::int64_t> until) {
  constexpr const char* kWhere = "OpPolicy.set_part";
  const bool is_recipe = quantization::find_recipe(treatment) != nullptr;
  std::vector<std::string> known{std::string(name_of(OpCategory::fp32)),
                                 std::string(name_of(OpCategory::lower_precision))};
  if (!is_recipe && std::ranges::find(known, treatment) == known.end()) {
    for (const auto& recipe : quantization::recipes()) known.emplace_back(recipe.name);
    refuse({.where = kWhere,
            .what = "a part cannot compute so",
            .seen = treatment,
            .advice = did_you_mean(treatment, known) + "; as in: part encoder.norm fp32"});
  }
  if (until && (!is_recipe || *until < 1))
    refuse({.where = kWhere,
            .what = "until names the first step without a recipe",
            .seen = std::string(treatment) + " until " + std::to_string(*until),
            .accepted = "a recipe, and a step of 1 or more"});
  std::erase_if(parts_, [&](const PartRule& rule) { return rule.part == part; });
  parts_.push_back({std::string(part), std::string(treatment), until});
  return *this;
}

OpPolicy& OpPolicy::keep_part_in_fp32(std::string_view part) {
  return set_part(part, name_of(OpCategory::fp32));
}

std::vector<std::string> OpPolicy::fp32_parts() const {
  std::vector<std::string> names;
  for (const PartRule& rule : parts_)
    if (rule.treatment == name_of(OpCategory::fp32)) names.push_back(rule.part);
  return names;
}

OpPolicy& OpPolicy::set(std::string_view op, OpCategory category, std::string_view reason) {
  const auto overloads = overloads_of(op);
  if (overloads.empty()) refuse_op(op);
  for (const auto& name : overloads) {
    std::erase_if(changes_, [&](const OpRule& rule) { return rule.op == name; });
    changes_.push_back({name, category, std::string(reason)});
  }
  return *this;
}

std::vector<OpRule> OpPolicy::rules(c10::DeviceType device) const {
  std::map<std::string, OpRule> table;
  for (auto& rule : default_op_rules(device)) table[rule.op] = rule;
  for (const auto& rule : changes_) table[rule.op] = rule;
  std::vector<OpRule> result;
  for (auto& [op, rule] : table) result.push_back(std::move(rule));
  return result;
}

}  // namespace demi
