#include "lab/results/layers_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lab/report/format.h"

namespace demi::results {
namespace {

constexpr std::size_t kMostBars = 24;

std::string small(double value) {
  if (std::isinf(value)) return "Inf";
  return value == 0 ? "0" : fmt::format("{:.1e}", value);
}

std::string cosine_text(double value) {
  return value > 0.99999 ? "1" : report::format_fixed(value, 5);
}

std::string range_text(const recipes::Difference& d) {
  return d.greatest == 0 ? "" : small(d.least) + " to " + small(d.greatest);
}

std::string flushed_text(const recipes::Difference& d) {
  return d.flushed == 0 ? "0" : report::format_percent(d.flushed);
}

// Layers come by harm: of Inf or NaN the first to appear.
std::string verdict_of(const recipes::LayerComparison& run) {
  constexpr double kSmall = 0.01;
  if (run.layers.empty()) return "There is no layer with weights.";
  const recipes::LayerDifference& worst = run.layers.front();
  const char* where = worst.output.nonfinite > 0     ? "output"
                      : worst.gradient.nonfinite > 0 ? "output's gradient"
                                                     : "weights' gradient";
  if (std::isinf(worst.harm()))
    return fmt::format("Inf or NaN begin in {}, in its {}.", worst.name, where);
  if (worst.harm() < kSmall)
    return fmt::format("No layer is off by 1 % or more; {} is the worst, by {}.", worst.name,
                       small(worst.harm()));
  return fmt::format("{} is harmed most: it is off by {} of its values or gradients.", worst.name,
                     small(worst.harm()));
}

report::Table table_of(const recipes::LayerComparison& run) {
  report::Table table{
      .title = fmt::format("layers in {} against fp32, the most harmed first", run.spec.label)};
  table.columns = {{.name = "layer", .align = report::Align::kLeft},
                   {.name = "op", .align = report::Align::kLeft},
                   {.name = "output: error"},
                   {.name = "cosine"},
                   {.name = "range in fp32"},
                   {.name = "gradient: error"},
                   {.name = "cosine"},
                   {.name = "range in fp32"},
                   {.name = "made 0"},
                   {.name = "weights' gradient: error"}};
  for (const recipes::LayerDifference& layer : run.layers)
    table.rows.push_back({layer.name, layer.op, small(layer.output.error),
                          cosine_text(layer.output.cosine), range_text(layer.output),
                          small(layer.gradient.error), cosine_text(layer.gradient.cosine),
                          range_text(layer.gradient), flushed_text(layer.gradient),
                          small(layer.weight_gradient.error)});
  table.notes = {verdict_of(run),
                 fmt::format("loss {:.6g}, in fp32 {:.6g}; loss scale {}", run.loss, run.exact_loss,
                             report::format_number(run.loss_scale)),
                 "Errors are |low - fp32| / |fp32|, gradients those of the unscaled loss with "
                 "respect to the layer's output; Inf: values that are Inf or NaN in low precision "
                 "alone."};
  return table;
}

// Inf, and errors beyond the whole value, are drawn as 1.
report::StackedBars bars_of(const recipes::LayerComparison& run, const std::string& title,
                            recipes::Difference recipes::LayerDifference::*part) {
  report::StackedBars bars{.title = title, .unit = "", .parts = {"error"}};
  for (const recipes::LayerDifference& layer : run.layers) {
    if (bars.bars.size() == kMostBars) break;
    bars.bars.push_back({layer.name, {std::min((layer.*part).error, 1.0)}});
  }
  bars.note = "Inf and errors above 1 are drawn as 1.";
  if (run.layers.size() > kMostBars)
    bars.note += fmt::format(" The {} most harmed of {} layers.", kMostBars, run.layers.size());
  return bars;
}

nlohmann::ordered_json json_of(const recipes::Difference& d) {
  return {{"error", d.error},         {"cosine", d.cosine}, {"made_zero", d.flushed},
          {"nonfinite", d.nonfinite}, {"least", d.least},   {"greatest", d.greatest}};
}

}  // namespace

std::vector<report::Table> to_tables(const LayerReport& report) {
  std::vector<report::Table> tables;
  for (const recipes::LayerComparison& run : report.runs) tables.push_back(table_of(run));
  return tables;
}

report::Page to_page(const LayerReport& report, const std::string& command) {
  const settings::Config& c = report.options.config;
  report::Page page{
      .title = "demi compare " + report.recipe + " --layers",
      .subtitle = fmt::format("{} on {}, one batch of {} after {} steps in fp32, seed {}", c.model,
                              c.data, c.batch_size, report.options.steps, c.seed)};
  for (const recipes::LayerComparison& run : report.runs) {
    report::Section section{run.spec.label, {table_of(run)}};
    section.blocks.emplace_back(
        bars_of(run, "Error of the output by layer", &recipes::LayerDifference::output));
    section.blocks.emplace_back(bars_of(run, "Error of the output's gradient by layer",
                                        &recipes::LayerDifference::gradient));
    section.blocks.emplace_back(bars_of(run, "Error of the weights' gradient by layer",
                                        &recipes::LayerDifference::weight_gradient));
    page.sections.push_back(std::move(section));
  }
  page.sections.push_back({"Again", {report::Code{command}}});
  return page;
}

nlohmann::ordered_json json_of(const LayerReport& report) {
  const settings::Config& c = report.options.config;
  nlohmann::ordered_json json{{"recipe", report.recipe},
                              {"model", c.model},
                              {"data", c.data},
                              {"batch_size", std::to_string(c.batch_size)},
                              {"steps", report.options.steps},
                              {"seed", c.seed},
                              {"runs", nlohmann::ordered_json::array()}};
  for (const recipes::LayerComparison& run : report.runs) {
    nlohmann::ordered_json one{{"precision", run.spec.label},
                               {"loss_scale", run.loss_scale},
                               {"loss", run.loss},
                               {"fp32_loss", run.exact_loss},
                               {"layers", nlohmann::ordered_json::array()}};
    for (const recipes::LayerDifference& layer : run.layers)
      one["layers"].push_back({{"name", layer.name},
                               {"op", layer.op},
                               {"harm", layer.harm()},
                               {"output", json_of(layer.output)},
                               {"gradient", json_of(layer.gradient)},
                               {"weight_gradient", json_of(layer.weight_gradient)}});
    json["runs"].push_back(std::move(one));
  }
  return json;
}

}  // namespace demi::results
