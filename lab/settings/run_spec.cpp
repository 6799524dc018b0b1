#include "lab/settings/run_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "demi/core/error.h"
#include "demi/core/nearest.h"
#include "lab/settings/config.h"
#include "lab/shell_word.h"

namespace demi::settings {
namespace {

struct Variant {
  std::string_view name;
  std::string_view value;  // a word for it; empty: the variant has none
  bool of_region;          // means nothing without an autocast region
  void (*set)(RunSpec& run, std::string_view value);
};

void add_part(RunSpec& run, std::string_view part) {
  if (!run.fp32_part.empty()) run.fp32_part += ',';
  run.fp32_part += part;
}

void set_scale(RunSpec& run, std::string_view number) {
  run.loss_scale = parse_loss_scale(number);
  if (run.loss_scale.kind != LossScale::Kind::fixed)
    throw UsageError({.where = "settings.parse_run",
                      .what = "the loss scale is not a positive number",
                      .seen = number,
                      .accepted = "a number such as 128 or 65536"});
}

void set_graph(RunSpec& run, std::string_view word) {
  if (word != "on" && word != "auto" && word != "off")
    throw UsageError({.where = "settings.parse_run",
                      .what = "no such mode of a CUDA graph",
                      .seen = word,
                      .accepted = "on, auto, off"});
  run.cuda_graph = word;
}

constexpr std::array<Variant, 12> kVariants{{
    {"no-scaler", "", false,
     [](RunSpec& r, auto) {
       r.loss_scale = {LossScale::Kind::off, 0};
     }},
    {"scaler", "", false,
     [](RunSpec& r, auto) {
       r.loss_scale = {LossScale::Kind::dynamic, 0};
     }},
    {"statistics", "", false,
     [](RunSpec& r, auto) {
       r.loss_scale = {LossScale::Kind::statistics, 0};
     }},
    {"scale", "NUMBER", false, set_scale},
    {"no-skip", "", false, [](RunSpec& r, auto) { r.skip = false; }},
    {"split", "", false, [](RunSpec& r, auto) { r.weight_mode = "split"; }},
    {"split24", "", false, [](RunSpec& r, auto) { r.weight_mode = "split24"; }},
    {"stochastic", "", false, [](RunSpec& r, auto) { r.weight_mode = "stochastic"; }},
    {"cuda-graph", "WORD", false, set_graph},
    {"no-autocast", "", true, [](RunSpec& r, auto) { r.autocast = false; }},
    {"fp32-part", "NAME", true, add_part},
    {"op-policy", "FILE", true, [](RunSpec& r, std::string_view file) { r.op_policy = file; }},
}};

std::string shown(const Variant& variant) {
  std::string text(variant.name);
  return variant.value.empty() ? text : text + "=" + std::string(variant.value);
}

[[noreturn]] void refuse_unknown(std::string_view name, std::string_view run) {
  std::vector<std::string> names;
  std::string known;
  for (const Variant& variant : kVariants) {
    names.emplace_back(variant.name);
    known += (known.empty() ? "" : ", ") + shown(variant);
  }
  const std::string near = nearest(name, names);
  std::string advice;
  for (const Variant& variant : kVariants)
    if (variant.name == near) advice = "did you mean " + shown(variant) + "? ";
  throw UsageError({.where = "settings.parse_run",
                    .what = "no such variant of a run",
                    .seen = run,
                    .advice = advice + "known: " + known});
}

void set_variant(RunSpec& run, std::string_view text, std::string_view whole) {
  const std::size_t equals = text.find('=');
  const bool has_value = equals != std::string_view::npos;
  const std::string_view name = text.substr(0, equals);
  const auto variant = std::ranges::find(kVariants, name, &Variant::name);
  if (variant == kVariants.end() || has_value == variant->value.empty())
    refuse_unknown(name, whole);
  const std::string_view value = has_value ? text.substr(equals + 1) : "";
  if (has_value && value.empty())
    throw UsageError({.where = "settings.parse_run",
                      .what = "a variant names nothing",
                      .seen = whole,
                      .accepted = shown(*variant)});
  if (variant->of_region && !run.precision.is_mixed())
    throw UsageError({.where = "settings.parse_run",
                      .what = std::string(name) + " is about the autocast region, and " +
                              std::string(run.precision.name) + " computes without one",
                      .seen = whole,
                      .accepted = "a mixed precision: fp16, bf16"});
  variant->set(run, value);
  // A run has one label: scale=128 for scale=128.0.
  run.label.append(":").append(name);
  if (has_value) run.label.append("=").append(name == "scale" ? to_text(run.loss_scale) : value);
}

}  // namespace

std::string to_text(const LossScale& scale) {
  switch (scale.kind) {
    case LossScale::Kind::automatic:
      return "auto";
    case LossScale::Kind::dynamic:
      return "dynamic";
    case LossScale::Kind::statistics:
      return "statistics";
    case LossScale::Kind::off:
      return "off";
    case LossScale::Kind::fixed:
      break;
  }
  return fmt::format("{}", scale.value);
}

std::string typed_options(std::string_view text) {
  const RunSpec run = parse_run(text);
  std::string options = "--precision " + std::string(run.precision.name);
  if (run.loss_scale.kind != LossScale::Kind::automatic)
    options += " --loss-scale " + to_text(run.loss_scale);
  if (!run.skip) options += " --no-skip";
  if (!run.weight_mode.empty()) options += " --weight-mode " + run.weight_mode;
  if (!run.cuda_graph.empty()) options += " --cuda-graph " + run.cuda_graph;
  if (!run.autocast) options += " --no-autocast";
  if (!run.fp32_part.empty()) options += " --fp32-part " + lab::shell_word(run.fp32_part);
  if (!run.op_policy.empty()) options += " --op-policy " + lab::shell_word(run.op_policy);
  return options;
}

RunSpec run_in(const Precision& precision) {
  return {.label = std::string(precision.name), .precision = precision, .loss_scale = {}};
}

namespace {

// The length of the precision's name, which may hold a colon itself.
std::size_t name_length(std::string_view text) {
  std::size_t length = std::min(text.find(':'), text.size());
  for (const Precision& precision : precisions()) {
    const std::size_t n = precision.name.size();
    if (n > length && text.starts_with(precision.name) && (n == text.size() || text[n] == ':'))
      length = n;
  }
  return length;
}

}  // namespace

RunSpec parse_run(std::string_view text) {
  std::size_t colon = text.find(':', name_length(text));
  RunSpec run = run_in(parse_precision(text.substr(0, colon)));
  while (colon != std::string_view::npos) {
    const std::size_t next = text.find(':', colon + 1);
    const std::string_view variant =
        text.substr(colon + 1, next == std::string_view::npos ? next : next - colon - 1);
    set_variant(run, variant, text);
    colon = next;
  }
  return run;
}

std::vector<RunSpec> parse_runs(std::string_view text) {
  std::vector<RunSpec> runs;
  for (const std::string& word : words_of(text)) {
    runs.push_back(parse_run(word));
    for (std::size_t i = 0; i + 1 < runs.size(); ++i) {
      if (file_name(runs[i].label) == file_name(runs.back().label))
        throw UsageError({.where = "settings.parse_runs",
                          .what = "the same run twice",
                          .seen = runs.back().label});
    }
  }
  return runs;
}

std::string file_name(std::string_view label) {
  std::string name(label);
  for (char& c : name) {
    if (c == ':' || c == '=' || c == '/') c = '-';
  }
  return name;
}

}  // namespace demi::settings
