#include "demi/train/compare_report.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "demi/report/format.h"
#include "demi/train/published.h"
#include "demi/train/table_json.h"

namespace demi::train {
namespace {

using report::format_factor;
using report::format_fixed;
using report::format_percent;

std::string seconds(double value) { return format_fixed(value, value < 10 ? 2 : 1); }

std::string percent(const std::optional<double>& share) {
  return share ? format_percent(*share) : "";
}

// A run that stopped early has no test figures; the table shows a dash for an empty cell.
std::vector<std::string> row_of(const RunResult& run, const report::ByteUnit& memory,
                                const report::ByteUnit& file) {
  const bool whole = !run.history.stopped;
  const auto bytes = [](int64_t value, const report::ByteUnit& unit) {
    return format_fixed(static_cast<double>(value) / unit.bytes, 2);
  };
  return {run.spec.label,
          seconds(run.seconds_per_epoch),
          format_factor(run.speedup),
          bytes(run.peak_bytes, memory),
          bytes(run.peak_resident_bytes, memory),
          whole && run.model_bytes > 0 ? bytes(run.model_bytes, file) : "",
          percent(run.test_accuracy),
          percent(run.test_accuracy_fp32_eval),
          report::format_count(run.skipped_steps)};
}

// A run alone is compared with nothing, and what has no test set has no accuracy.
void drop_empty_columns(report::Table& table, const Comparison& c) {
  const bool tested = std::any_of(c.runs.begin(), c.runs.end(), [](const RunResult& run) {
    return run.test_accuracy.has_value();
  });
  std::vector<std::size_t> gone;
  if (!tested && !c.stopped) gone = {7, 6};
  if (c.runs.size() == 1) gone.push_back(2);
  for (const std::size_t column : gone) {
    table.columns.erase(table.columns.begin() + static_cast<std::ptrdiff_t>(column));
    for (auto& row : table.rows) row.erase(row.begin() + static_cast<std::ptrdiff_t>(column));
  }
}

std::string machine_line(const Machine& machine) {
  return fmt::format("{} ({}, {} thread{}), LibTorch {}, demi {}", machine.device_name,
                     machine.instruction_set, machine.threads, machine.threads == 1 ? "" : "s",
                     machine.libtorch, machine.demi);
}

std::string data_line(const Comparison& c) {
  return fmt::format(
      "{} on {}: {} training and {} test examples, {} epoch{} of {} steps, batch {}{}, seed {}",
      c.config.model, c.config.data, report::format_count(c.training_examples),
      report::format_count(c.test_examples), c.config.epochs, c.config.epochs == 1 ? "" : "s",
      c.steps_per_epoch, c.config.batch_size,
      c.config.accumulate > 1 ? fmt::format(" x {} accumulated", c.config.accumulate) : "",
      c.config.seed);
}

using Pick = std::optional<double> (*)(const StepRecord&);

report::Series steps_of(const RunResult& run, Pick pick) {
  report::Series series{.name = run.spec.label};
  for (const StepRecord& step : run.history.steps) {
    if (const auto value = pick(step)) {
      series.x.push_back(static_cast<double>(step.step));
      series.y.push_back(*value);
    }
  }
  return series;
}

report::Chart step_chart(const Comparison& c, std::string title, report::Axis y, Pick pick) {
  report::Chart chart{.title = std::move(title), .x = {.label = "step"}, .y = std::move(y)};
  for (const RunResult& run : c.runs) chart.series.push_back(steps_of(run, pick));
  for (int64_t epoch = 1; epoch < c.config.epochs; ++epoch) {
    chart.marks.push_back(
        {static_cast<double>(epoch * c.steps_per_epoch), fmt::format("epoch {}", epoch)});
  }
  return chart;
}

report::Chart accuracy_chart(const Comparison& c) {
  report::Chart chart{
      .title = "Test accuracy", .x = {.label = "epoch"}, .y = {.label = "accuracy", .unit = "%"}};
  for (const RunResult& run : c.runs) {
    report::Series series{.name = run.spec.label};
    for (const EpochRecord& epoch : run.history.epochs) {
      if (!epoch.validation || !epoch.validation->accuracy) continue;
      series.x.push_back(static_cast<double>(epoch.epoch));
      series.y.push_back(100 * *epoch.validation->accuracy);
    }
    chart.series.push_back(std::move(series));
  }
  chart.note = "Of the weights as trained, after each epoch, in the run's own precision.";
  return chart;
}

report::StackedBars phase_bars(const Comparison& c) {
  report::StackedBars bars{.title = "Training time by phase", .unit = "s"};
  for (const std::string_view name : profile::kPhaseNames) bars.parts.emplace_back(name);
  for (const RunResult& run : c.runs) {
    report::StackedBars::Bar bar{.name = run.spec.label,
                                 .values = std::vector<double>(bars.parts.size())};
    for (const EpochRecord& epoch : run.history.epochs) {
      for (std::size_t i = 0; i < bar.values.size(); ++i) bar.values[i] += epoch.phase_seconds[i];
    }
    bars.bars.push_back(std::move(bar));
  }
  if (c.machine.device != "cpu") bars.note = "The host's time: the device works behind its back.";
  return bars;
}

report::Chart step_time_chart(const Comparison& c) {
  report::Chart chart =
      step_chart(c, "Time of a step", {.label = "time", .unit = "ms"},
                 [](const StepRecord& s) -> std::optional<double> { return 1e3 * s.seconds; });
  chart.note = "From the end of the step before; every few steps the device is read in it.";
  return chart;
}

report::Chart wait_chart(const Comparison& c) {
  report::Chart chart =
      step_chart(c, "Waiting for data", {.label = "time", .unit = "ms"},
                 [](const StepRecord& s) -> std::optional<double> { return 1e3 * s.data_seconds; });
  chart.note = "The part of a step in which it had no batch: near the whole, loading is the limit.";
  return chart;
}

report::Highlights highlights(const Comparison& c) {
  report::Highlights result;
  const RunResult& first = c.runs.front();
  const RunResult& last = c.runs.back();
  const bool several = c.runs.size() > 1;
  const auto beside = [&](const std::string& of_first) {
    return several ? first.spec.label + ": " + of_first : std::string();
  };
  const auto bytes = [](int64_t n) { return report::format_bytes(static_cast<double>(n)); };
  if (several) {
    result.figures.push_back(
        {format_factor(last.speedup), "speed", last.spec.label + " against " + first.spec.label});
  } else {
    result.figures.push_back({seconds(last.seconds_per_epoch) + " s", "an epoch", ""});
  }
  if (last.history.stopped) return result;
  if (last.test_accuracy)
    result.figures.push_back({format_percent(*last.test_accuracy), "test accuracy",
                              beside(percent(first.test_accuracy))});
  if (last.model_bytes > 0)
    result.figures.push_back(
        {bytes(last.model_bytes), "model size", beside(bytes(first.model_bytes))});
  result.figures.push_back(
      {bytes(last.peak_bytes), "peak memory of tensors", beside(bytes(first.peak_bytes))});
  return result;
}

nlohmann::ordered_json json_of(const RunResult& run) {
  nlohmann::ordered_json json;
  json["precision"] = run.spec.label;
  json["seconds"] = run.seconds;
  json["seconds_per_epoch"] = run.seconds_per_epoch;
  const auto number = [](const std::optional<double>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  json["test_loss"] = number(run.test_accuracy ? std::optional(run.test_loss) : std::nullopt);
  json["test_accuracy"] = number(run.test_accuracy);
  json["test_accuracy_fp32_eval"] = number(run.test_accuracy_fp32_eval);
  if (!run.class_accuracy.empty()) json["class_accuracy"] = run.class_accuracy;
  json["parameters"] = run.parameters;
  json["peak_bytes"] = run.peak_bytes;
  json["peak_resident_bytes"] = run.peak_resident_bytes;
  json["model_bytes"] = run.model_bytes;
  json["checkpoint_bytes"] = run.checkpoint_bytes;
  json["skipped_steps"] = run.skipped_steps;
  json["speedup"] = run.speedup;
  json["stopped"] = run.history.stopped;
  json["failed"] =
      run.history.failed ? nlohmann::ordered_json(*run.history.failed) : nlohmann::ordered_json();
  return json;
}

}  // namespace

report::Table to_table(const Comparison& c) {
  double memory = 0, file = 0;
  for (const RunResult& run : c.runs) {
    memory = std::max({memory, static_cast<double>(run.peak_bytes),
                       static_cast<double>(run.peak_resident_bytes)});
    file = std::max(file, static_cast<double>(run.model_bytes));
  }
  const report::ByteUnit memory_unit = report::byte_unit(memory),
                         file_unit = report::byte_unit(file);
  report::Table table{.title = c.recipe + ": " + c.machine.device};
  table.columns = {{.name = "precision", .align = report::Align::kLeft},
                   {.name = "time per epoch", .unit = "s"},
                   {.name = "speedup"},
                   {.name = "peak memory, tensors", .unit = memory_unit.name},
                   {.name = "peak memory, process", .unit = memory_unit.name},
                   {.name = "model size", .unit = file_unit.name},
                   {.name = "test accuracy"},
                   {.name = "evaluated in fp32"},
                   {.name = "skipped steps"}};
  for (const RunResult& run : c.runs) table.rows.push_back(row_of(run, memory_unit, file_unit));
  drop_empty_columns(table, c);
  table.notes = {data_line(c), machine_line(c.machine)};
  table.notes.insert(table.notes.end(), c.notes.begin(), c.notes.end());
  if (c.stopped)
    table.notes.push_back("Stopped early: " + c.runs.back().spec.label + " is not whole.");
  return table;
}

report::Table class_table(const Comparison& c) {
  report::Table table{.title = "test accuracy by class"};
  table.columns = {{.name = "class", .align = report::Align::kLeft}};
  for (const RunResult& run : c.runs) table.columns.push_back({.name = run.spec.label});
  for (std::size_t i = 0; i < c.classes.size(); ++i) {
    table.rows.push_back({c.classes[i]});
    for (const RunResult& run : c.runs) {
      const bool known = i < run.class_accuracy.size() && std::isfinite(run.class_accuracy[i]);
      table.rows.back().push_back(known ? format_percent(run.class_accuracy[i]) : "");
    }
  }
  return table;
}

report::Page to_page(const Comparison& c, const std::string& command) {
  report::Page page{.title = (c.runs.size() == 1 ? "demi train " : "demi compare ") + c.recipe,
                    .subtitle = data_line(c)};
  if (c.runs.empty()) return page;
  report::Chart loss =
      step_chart(c, "Training loss", {.label = "loss"},
                 [](const StepRecord& s) -> std::optional<double> { return s.loss; });
  loss.smoothing = 0.9;
  report::Section curves{"Curves", {std::move(loss)}};
  if (c.test_examples > 0) curves.blocks.emplace_back(accuracy_chart(c));
  report::Chart scale =
      step_chart(c, "Loss scale", {.label = "loss scale", .scale = report::Scale::kLog2},
                 [](const StepRecord& s) { return s.loss_scale; });
  scale.steps = true;
  const bool scaled = std::any_of(scale.series.begin(), scale.series.end(),
                                  [](const auto& s) { return !s.x.empty(); });
  if (scaled) curves.blocks.emplace_back(std::move(scale));
  curves.blocks.emplace_back(
      step_chart(c, "Learning rate", {.label = "learning rate"},
                 [](const StepRecord& s) -> std::optional<double> { return s.learning_rate; }));

  const Machine& m = c.machine;
  report::Facts facts{"",
                      {{"device", m.device + ", " + m.device_name},
                       {"instruction set", m.instruction_set},
                       {"threads", std::to_string(m.threads)},
                       {"LibTorch", m.libtorch},
                       {"demi", m.demi}}};
  page.sections = {{"", {highlights(c), to_table(c)}},
                   std::move(curves),
                   {"Where the time goes", {phase_bars(c), step_time_chart(c), wait_chart(c)}},
                   {"Machine", {std::move(facts)}},
                   {"Again", {report::Code{command}}}};
  const bool needs_no_scale = std::all_of(c.runs.begin(), c.runs.end(), [](const RunResult& run) {
    return run.spec.precision.autocast != c10::kHalf && run.spec.precision.weights != c10::kHalf;
  });
  if (!scaled && needs_no_scale) {
    page.sections[1].blocks.emplace_back(report::Paragraph{
        "No loss is scaled here: fp32, tf32, fp64 and bf16 have the exponent range for it."});
  }
  if (auto beside = published_beside(c))
    page.sections.insert(page.sections.begin() + 1, {"Published results", {std::move(*beside)}});
  if (!c.runs.front().class_accuracy.empty())
    page.sections.insert(page.sections.begin() + 1, {"By class", {class_table(c)}});
  return page;
}

std::string to_json(const Comparison& c) {
  nlohmann::ordered_json json;
  json["recipe"] = c.recipe;
  json["model"] = c.config.model;
  json["data"] = c.config.data;
  json["epochs"] = c.config.epochs;
  json["batch_size"] = batch_size_of(c.config);
  json["learning_rate"] = c.config.lr;
  json["seed"] = c.config.seed;
  json["training_examples"] = c.training_examples;
  json["test_examples"] = c.test_examples;
  json["machine"] = {{"device", c.machine.device},
                     {"device_name", c.machine.device_name},
                     {"instruction_set", c.machine.instruction_set},
                     {"threads", c.machine.threads},
                     {"libtorch", c.machine.libtorch},
                     {"demi", c.machine.demi}};
  json["runs"] = nlohmann::ordered_json::array();
  for (const RunResult& run : c.runs) json["runs"].push_back(json_of(run));
  json["speedup"] =
      c.runs.size() > 1 ? nlohmann::ordered_json(c.runs[1].speedup) : nlohmann::ordered_json();
  json["stopped"] = c.stopped;
  json["notes"] = c.notes;
  if (const auto beside = published_beside(c)) json["published"] = json_of(*beside);
  return json.dump(2);
}

}  // namespace demi::train
