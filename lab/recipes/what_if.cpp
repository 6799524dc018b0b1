#include "lab/recipes/what_if.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>
#include <utility>

#include "demi/core/error.h"
#include "demi/monitor/origin.h"
#include "demi/tensor/dtype.h"
#include "lab/recipes/recipe_what_if.h"
#include "lab/report/format.h"
#include "lab/settings/resolved.h"
#include "lab/shell_word.h"

namespace demi::recipes {
namespace {

using monitor::FormatLoss;
using monitor::TensorFate;
using monitor::WhatIfResult;

constexpr std::size_t kMostRows = 20;

std::string share_of(int64_t part, const FormatLoss& loss) {
  if (part == 0) return "0";
  return report::format_share(static_cast<double>(part) / static_cast<double>(loss.elements));
}

std::string range_of(const FormatLoss& loss) {
  if (loss.greatest == 0) return "";
  return fmt::format("2^{} to {:.3g}", loss.least_exponent, loss.greatest);
}

// Whether a cure is the tensor's own: of its layer or of its op.
std::string cure_of(const TensorFate& fate, const WhatIfResult& result) {
  for (const monitor::Cure& cure : result.cures)
    if (cure.layer == fate.layer && cure.op == fate.op)
      return (cure.kind == monitor::Cure::Kind::part ? "part " : "op ") + cure.name;
  return "";
}

std::string cause_of(const TensorFate& fate) {
  if (fate.loss.overflowed == 0) return "";
  return fate.from.empty() ? "made here" : "from " + fate.from;
}

std::string scale_text(const WhatIfResult& result) {
  const std::string least = report::format_number(result.least_scale, 6);
  if (result.least_scale == result.greatest_scale) return least;
  return least + " to " + report::format_number(result.greatest_scale, 6);
}

std::vector<std::string> notes_of(const RunResult& run) {
  const WhatIfResult& result = *run.what_if;
  const std::string format = tensor::name_of(result.format);
  std::vector<std::string> notes;
  for (const monitor::Cure& cure : result.cures)
    notes.push_back("In FP32: " + to_string(cure, result.format) + ".");
  if (result.uncured)
    notes.push_back(
        fmt::format("{} cannot train it as it is: a batch of step {} gives Inf or NaN whatever "
                    "computes in FP32, "
                    "as {}.",
                    format, result.uncured->step, cause_of(*result.uncured)));
  if (result.diverged)
    notes.push_back(fmt::format(
        "The run is not finite itself from step {} on, whatever the format: what {} needs is not "
        "known. --detect-anomaly says where Inf or NaN begin.",
        *result.diverged, format));
  else if (!result.cures.empty())
    notes.push_back("Policy file: " + run.what_if_policy.string());
  else if (!result.uncured)
    notes.push_back("No part of the model and no op has to compute in FP32.");
  notes.push_back(fmt::format(
      "Of {} batches, steps {} to {}; gradients times a loss scale of {}. Below normal: numbers "
      "that keep fewer digits in {}.",
      result.batches, result.first_step, result.last_step, scale_text(result), format));
  return notes;
}

report::Table table_of(const RunResult& run) {
  const WhatIfResult& result = *run.what_if;
  const std::string format = tensor::name_of(result.format);
  report::Table table{.title = fmt::format("{}: what if it were {}", run.spec.label, format)};
  table.columns = {{.name = "layer", .align = report::Align::kLeft},
                   {.name = "op", .align = report::Align::kLeft},
                   {.name = "tensor", .align = report::Align::kLeft},
                   {.name = "range in fp32"},
                   {.name = "overflows"},
                   {.name = "becomes 0"},
                   {.name = "below normal"},
                   {.name = "overflow comes", .align = report::Align::kLeft},
                   {.name = "in FP32", .align = report::Align::kLeft}};
  std::size_t left_out = 0, unharmed = 0;
  for (const TensorFate& fate : result.tensors) {
    const FormatLoss& loss = fate.loss;
    if (!loss.harms()) {
      ++unharmed;
    } else if (table.rows.size() == kMostRows) {
      ++left_out;
    } else {
      table.rows.push_back({fate.layer, fate.op, std::string(name_of(fate.place)), range_of(loss),
                            share_of(loss.overflowed, loss), share_of(loss.flushed, loss),
                            share_of(loss.subnormal, loss), cause_of(fate), cure_of(fate, result)});
    }
  }
  table.notes = notes_of(run);
  if (left_out > 0)
    table.notes.push_back(fmt::format("{} tensor{} harmed less: result.json and --json name them.",
                                      left_out, left_out == 1 ? " is" : "s are"));
  table.notes.push_back(fmt::format("{} tensor{} nothing but digits.", unharmed,
                                    unharmed == 1 ? " loses" : "s lose"));
  return table;
}

}  // namespace

void check_what_if(const settings::Config& config, std::span<const settings::RunSpec> runs) {
  if (config.what_if.empty()) return;
  const auto is_asked = [](const settings::RunSpec& run) { return can_be_asked(run.precision); };
  if (std::ranges::any_of(runs, is_asked)) return;
  throw UsageError({.where = "--what-if",
                    .what = "no run computes in FP32, where it looks at the numbers",
                    .seen = runs.empty() ? "" : runs.front().label,
                    .accepted = "fp32, tf32",
                    .advice = "leave out --precision: what 16 bits did to a 16-bit run is shown by "
                              "--monitor and --detect-anomaly"});
}

bool can_be_asked(const Precision& precision) {
  return precision.weights == c10::kFloat && !precision.is_mixed();
}

monitor::WhatIfOptions what_if_options(const settings::Resolved& run) {
  const settings::Config& config = run.config;
  const Precision& precision = parse_precision(config.what_if);
  monitor::WhatIfOptions options{.format = *precision.autocast,
                                 .policy = run.op_policy.value_or(OpPolicy())};
  for (const std::string& part : run.fp32_parts) options.policy.keep_part_in_fp32(part);
  const LossScale scale = run.spec.loss_scale;
  const bool is_automatic = scale.kind == LossScale::Kind::automatic;
  const bool is_off = scale.kind == LossScale::Kind::off || !config.scaler ||
                      (is_automatic && options.format != c10::kHalf);
  options.dynamic_scale = !is_off && scale.kind != LossScale::Kind::fixed;
  options.loss_scale = is_off ? 1 : options.dynamic_scale ? config.init_scale : scale.value;
  return options;
}

std::vector<report::MetricFields> what_if_lines(const std::string& run,
                                                const WhatIfResult& result) {
  std::vector<report::MetricFields> lines;
  for (const TensorFate& fate : result.tensors) {
    const FormatLoss& loss = fate.loss;
    if (!loss.harms()) continue;
    lines.push_back({{"run", run},
                     {"epoch", int64_t{0}},
                     {"step", result.last_step},
                     {"what_if", tensor::name_of(result.format)},
                     {"layer", fate.layer},
                     {"op", fate.op},
                     {"tensor", std::string(name_of(fate.place))},
                     {"elements", loss.elements},
                     {"zeros", loss.zeros},
                     {"overflowed", loss.overflowed},
                     {"flushed", loss.flushed},
                     {"subnormal", loss.subnormal},
                     {"greatest", loss.greatest},
                     {"lost", loss.lost()},
                     {"first_overflow", loss.first_overflow},
                     {"from", fate.from}});
  }
  return lines;
}

std::vector<report::Table> what_if_tables(const Comparison& comparison) {
  std::vector<report::Table> tables;
  for (const RunResult& run : comparison.runs)
    if (run.what_if || run.recipe_what_if)
      tables.push_back(run.what_if ? table_of(run) : recipe_what_if_table(run));
  return tables;
}

std::vector<std::string> lines_with_policy(const Comparison& comparison, const std::string& line) {
  static const std::regex own(  // and their values, which may be lab::shell_word's
      R"( --(what-if|precision|op-policy|runs|interleave)[ =]('[^']*'|\\'|[^ '\\])+)");
  static const std::regex command("^demi compare ");
  std::vector<std::string> lines;
  for (const RunResult& run : comparison.runs) {
    const bool is_of_format = run.what_if && !run.what_if->cures.empty();
    if (!is_of_format && (!run.recipe_what_if || !needs_policy(*run.recipe_what_if))) continue;
    std::string again = std::regex_replace(line, own, "");
    again = std::regex_replace(again, command, "demi train ");
    lines.push_back(fmt::format(
        "{} --precision {} --op-policy {}", again,
        is_of_format ? tensor::name_of(run.what_if->format) : run.recipe_what_if->recipe,
        lab::shell_word(run.what_if_policy.string())));
  }
  return lines;
}

std::optional<report::Section> what_if_section(const Comparison& comparison,
                                               const std::string& line) {
  const std::string& asked = comparison.config.what_if;
  const bool is_of_recipe = !asked.empty() && !parse_precision(asked).recipe.empty();
  report::Section section{"What if it were " + (is_of_recipe ? asked : "16 bits"), {}};
  for (report::Table& table : what_if_tables(comparison))
    section.blocks.push_back(std::move(table));
  if (section.blocks.empty()) return std::nullopt;
  for (const std::string& again : lines_with_policy(comparison, line))
    section.blocks.emplace_back(report::Code{again});
  return section;
}

}  // namespace demi::recipes
