#include "lab/results/compare_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "lab/recipes/what_if.h"
#include "lab/report/format.h"
#include "lab/results/health.h"
#include "lab/results/published.h"
#include "lab/results/verdict.h"
#include "lab/settings/resolved.h"

namespace demi::results {
namespace {

using report::format_factor;
using report::format_fixed;
using report::format_percent;

std::string seconds(double value) { return format_fixed(value, value < 10 ? 2 : 1); }

std::string percent(const std::optional<double>& share) {
  return share ? format_percent(*share) : "";
}

// The mark is before the figure, so that decimals still line up.
std::string speedup_of(const recipes::Comparison& c, const recipes::RunResult& run) {
  return (recipes::is_disturbed(c, run) ? "* " : "") + format_factor(run.speedup);
}

// A column of the table; an empty cell shows as a dash.
struct Field {
  report::Column column;
  std::function<std::string(const recipes::RunResult&)> cell;
};

// "8.13e-08 to 6.44e-10", of the run's first and last steps.
std::string losses_of(const recipes::RunResult& run) {
  if (run.history.steps.empty()) return "";
  const Learning learning = learning_of(run);
  return report::format_number(learning.first, 3) + " to " +
         report::format_number(learning.last, 3);
}

std::string verdict_of(const recipes::RunResult& run) {
  const std::string verdict = run.history.steps.empty() ? "" : learning_of(run).verdict;
  return verdict.empty() ? "" : ", " + verdict;
}

// The columns that at least one run has a value for: a single run has no speedup, a run without a
// test set no accuracy. A run that stopped early has no test figures.
std::vector<Field> fields_of(const recipes::Comparison& c) {
  const auto largest = [&](const auto& bytes_of) {
    int64_t most = 0;
    for (const recipes::RunResult& run : c.runs) most = std::max(most, bytes_of(run));
    return report::byte_unit(static_cast<double>(most));
  };
  const report::ByteUnit memory = largest([](const recipes::RunResult& run) {
    return std::max(run.peak_bytes, run.peak_resident_bytes);
  });
  const report::ByteUnit file =
      largest([](const recipes::RunResult& run) { return run.model_bytes; });
  const auto bytes = [](int64_t value, const report::ByteUnit& unit) {
    return format_fixed(static_cast<double>(value) / unit.bytes, 2);
  };
  const auto any = [&](const auto& has) { return std::ranges::any_of(c.runs, has); };
  const bool has_classes =
      (c.stopped && c.test_examples > 0) ||
      any([](const recipes::RunResult& run) { return run.test_accuracy.has_value(); });
  const auto has_file = [](const recipes::RunResult& run) {
    return !run.history.stopped && run.model_bytes > 0;
  };

  std::vector<Field> fields{{{.name = "precision", .align = report::Align::kLeft},
                             [](const recipes::RunResult& run) { return run.spec.label; }}};
  if (learned_differently(c))
    fields.push_back(
        {{.name = "training loss, first to last", .align = report::Align::kLeft},
         [](const recipes::RunResult& run) { return losses_of(run) + verdict_of(run); }});
  fields.push_back({{.name = "time per epoch", .unit = "s"},
                    [](const recipes::RunResult& run) { return seconds(run.seconds_per_epoch); }});
  if (c.runs.size() > 1)
    fields.push_back(
        {{.name = "speedup"}, [&c](const recipes::RunResult& run) { return speedup_of(c, run); }});
  fields.push_back({{.name = "peak memory, tensors", .unit = memory.name},
                    [=](const recipes::RunResult& run) { return bytes(run.peak_bytes, memory); }});
  if (any([](const recipes::RunResult& run) { return run.peak_resident_bytes > 0; }))
    fields.push_back(
        {{.name = "peak memory, process", .unit = memory.name},
         [=](const recipes::RunResult& run) { return bytes(run.peak_resident_bytes, memory); }});
  if (any(has_file))
    fields.push_back(
        {{.name = "model size", .unit = file.name}, [=](const recipes::RunResult& run) {
           return has_file(run) ? bytes(run.model_bytes, file) : "";
         }});
  if (any([](const recipes::RunResult& run) { return run.test_loss.has_value(); }))
    fields.push_back({{.name = "test loss"}, [](const recipes::RunResult& run) {
                        return run.test_loss ? report::format_loss(*run.test_loss) : "";
                      }});
  if (c.predicts_tokens)
    fields.push_back({{.name = "perplexity"}, [](const recipes::RunResult& run) {
                        return run.test_loss ? fmt::format("{:.4g}", std::exp(*run.test_loss)) : "";
                      }});
  if (any([](const recipes::RunResult& run) { return run.flops.has_value(); }))
    fields.push_back({{.name = "tokens per second"}, [](const recipes::RunResult& run) {
                        return run.flops ? format_fixed(run.flops->tokens_per_second, 0) : "";
                      }});
  if (any([](const recipes::RunResult& run) { return run.flops && run.flops->share(); }))
    fields.push_back({{.name = "of peak FLOPs"}, [](const recipes::RunResult& run) {
                        const auto share = run.flops ? run.flops->share() : std::nullopt;
                        return share ? format_percent(*share, 1) : "";
                      }});
  if (has_classes)
    fields.push_back({{.name = "test accuracy"},
                      [](const recipes::RunResult& run) { return percent(run.test_accuracy); }});
  for (const recipes::RunResult& run : c.runs) {
    if (!run.test_top_k_accuracy) continue;
    fields.push_back({{.name = fmt::format("top-{} accuracy", run.top_k)},
                      [](const recipes::RunResult& r) { return percent(r.test_top_k_accuracy); }});
    break;
  }
  if (has_classes)
    fields.push_back({{.name = "evaluated in fp32"}, [](const recipes::RunResult& run) {
                        return percent(run.test_accuracy_fp32_eval);
                      }});
  fields.push_back({{.name = "skipped steps"}, [](const recipes::RunResult& run) {
                      return report::format_count(run.skipped_steps);
                    }});
  if (any([](const recipes::RunResult& run) { return run.cores_share.has_value(); }))
    fields.push_back({{.name = "share of cores"}, [](const recipes::RunResult& run) {
                        return run.cores_share ? format_percent(*run.cores_share, 0) : "";
                      }});
  return fields;
}

// Names what a run with a recipe has quantized.
void note_recipes(const recipes::Comparison& c, std::vector<std::string>& notes) {
  for (const recipes::RunResult& run : c.runs)
    if (!run.recipe_layers.empty())
      notes.push_back(fmt::format("{}: {}; emulated, so its time is not hardware's.",
                                  run.spec.label, run.recipe_layers));
}

// Notes the data that the peaks of tensors leave out.
void note_data(const recipes::Comparison& c, std::vector<std::string>& notes) {
  int64_t most = 0;
  for (const recipes::RunResult& run : c.runs) most = std::max(most, run.data_bytes);
  if (most == 0) return;
  notes.push_back(fmt::format("The peak memory of tensors leaves out the data, {} on the device.",
                              report::format_bytes(static_cast<double>(most))));
}

// "95.3 GFLOP" of 95.3e9.
std::string flop_text(double flop) {
  constexpr std::array<const char*, 5> kUnits{"", "k", "M", "G", "T"};
  std::size_t unit = 0;
  for (; flop >= 1000 && unit + 1 < kUnits.size(); ++unit) flop /= 1000;
  return report::format_number(flop, 3) + " " + kUnits[unit] + "FLOP";
}

// Notes the peak and the operations that the share of the peak is made of.
void note_flops(const recipes::Comparison& c, std::vector<std::string>& notes) {
  std::string peaks;
  double per_token = 0;
  for (const recipes::RunResult& run : c.runs) {
    if (!run.flops || !run.flops->share()) continue;
    per_token = run.flops->per_token;
    peaks += fmt::format("{}{} {}/s of {}/s", peaks.empty() ? "" : "; ", run.spec.label,
                         flop_text(run.flops->per_second()), flop_text(run.flops->peak_per_second));
  }
  if (peaks.empty()) return;
  notes.push_back(fmt::format(
      "The model takes {} a token in training (6 N + 12 L T d), over the rate of square matrix "
      "products that was measured before: {}.",
      flop_text(per_token), peaks));
}

// Why speedups are marked.
void note_disturbances(const recipes::Comparison& c, std::vector<std::string>& notes) {
  for (const recipes::RunResult& run : c.runs) {
    if (run.cores_share.value_or(1) >= recipes::kQuietShare) continue;
    notes.push_back(fmt::format(
        "* {} got {} of the cores that it asked for, with {} involuntary switches: another program "
        "ran at the same time, so that {}.",
        run.spec.label, format_percent(*run.cores_share, 0),
        report::format_count(run.involuntary_switches),
        c.runs.size() == 1 ? "its time is not the machine's best"
        : c.turn_steps > 0 ? "times are too long; the runs took turns, so that each met it"
                           : "the speedups marked say nothing; compare again on a quiet machine, "
                             "or with --interleave"));
  }
}

bool is_fp32(const recipes::RunResult& run) {
  const Precision& precision = run.spec.precision;
  return precision.weights == c10::kFloat && !precision.is_mixed();
}

bool allowed(const std::string& setting, const Precision& precision) {
  return setting == "auto" ? precision.tf32 : setting == "on";
}

// A sentence on TF32 in the FP32 of a run on CUDA. LibTorch by itself allows it in convolutions.
std::string on_cuda(const recipes::Comparison& c, const Precision& precision) {
  const bool products = allowed(c.config.cuda_matmul_allow_tf32, precision);
  const bool cudnn = allowed(c.config.cudnn_allow_tf32, precision);
  const std::string name(precision.name);
  if (products && cudnn)
    return name + " has TF32 on in products, convolutions and recurrent layers.";
  if (products) return name + " has TF32 on in products, off in convolutions and recurrent layers.";
  if (cudnn)
    return name +
           " has TF32 off in products, on in convolutions and recurrent layers: LibTorch's own "
           "default.";
  return name +
         " is FP32 throughout: TF32 is off in products, convolutions and recurrent layers; "
         "LibTorch by itself has it on in the last two (--cudnn-allow-tf32 on).";
}

// Notes the meaning of FP32 in the comparison.
void note_fp32(const recipes::Comparison& c, std::vector<std::string>& notes) {
  const bool is_cuda = c.machine.device.starts_with("cuda");
  for (const bool tf32 : {false, true}) {
    const auto run = std::ranges::find_if(c.runs, [=](const recipes::RunResult& one) {
      return is_fp32(one) && one.spec.precision.tf32 == tf32;
    });
    if (run == c.runs.end()) continue;
    if (is_cuda) {
      notes.push_back(on_cuda(c, run->spec.precision));
    } else if (tf32) {
      notes.emplace_back("There is no tf32 on a CPU: the run computed in FP32.");
    }
  }
  if (is_cuda && c.config.cudnn_benchmark && !c.config.deterministic)
    notes.emplace_back(
        "cuDNN timed its algorithms for each shape in the first steps (--no-cudnn-benchmark).");
}

// Why a speedup is minor, one line a cause, in their order.
void note_slow_causes(const recipes::Comparison& c, std::vector<std::string>& notes) {
  for (const recipes::RunResult& run : c.runs)
    for (std::size_t i = 0; i < run.slow_causes.size(); ++i)
      notes.push_back(fmt::format("{}, {}: {}", run.spec.label,
                                  i == 0 ? "why it is hardly faster" : "then",
                                  run.slow_causes[i].text));
}

report::Section slow_section(const recipes::Comparison& c) {
  report::Section section{"Why the speedup is minor", {}};
  for (const recipes::RunResult& run : c.runs) {
    if (run.slow_causes.empty()) continue;
    report::Table table{.title = run.spec.label + ": " + format_factor(run.speedup)};
    table.columns = {{.name = "cause", .align = report::Align::kLeft},
                     {.name = "what shows it", .align = report::Align::kLeft}};
    for (const recipes::SlowCause& cause : run.slow_causes) {
      std::string name = cause.name;
      std::ranges::replace(name, '_', ' ');
      table.rows.push_back({std::move(name), cause.text});
    }
    section.blocks.emplace_back(std::move(table));
  }
  return section;
}

// The length of the training: "3 epochs of 100 steps", or the part of it that each run took.
std::string trained(const recipes::Comparison& c) {
  const std::string asked =
      fmt::format("{} epoch{} of {} step{}", c.config.epochs, c.config.epochs == 1 ? "" : "s",
                  c.steps_per_epoch, c.steps_per_epoch == 1 ? "" : "s");
  const auto steps = [](const recipes::RunResult& run) { return std::ssize(run.history.steps); };
  std::string text;
  for (const recipes::RunResult& run : c.runs) {
    if (steps(run) == c.config.epochs * c.steps_per_epoch) continue;
    const bool alone = std::ranges::all_of(
        c.runs, [&](const recipes::RunResult& other) { return steps(other) == steps(run); });
    const std::string count =
        report::format_count(steps(run)) + (steps(run) == 1 ? " step" : " steps");
    if (alone) return count + " of " + asked;
    text += (text.empty() ? "" : ", ") + run.spec.label + " " + count;
  }
  return asked + (text.empty() ? "" : " (" + text + ")");
}

std::string data_line(const recipes::Comparison& c) {
  return fmt::format("{} on {}: {} training and {} test examples, {}, batch {}{}, seed {}",
                     c.config.model, c.config.data, report::format_count(c.training_examples),
                     report::format_count(c.test_examples), trained(c), c.config.batch_size,
                     settings::batches_of_step(c.config) > 1
                         ? fmt::format(" x {} accumulated", settings::batches_of_step(c.config))
                         : "",
                     c.config.seed);
}

using Pick = std::optional<double> (*)(const train::StepMetrics&);

report::Series steps_of(const recipes::RunResult& run, Pick pick) {
  report::Series series{.name = run.spec.label};
  for (const train::StepMetrics& step : run.history.steps) {
    if (const auto value = pick(step)) {
      series.x.push_back(static_cast<double>(step.step));
      series.y.push_back(*value);
    }
  }
  return series;
}

report::Chart step_chart(const recipes::Comparison& c, std::string title, report::Axis y,
                         Pick pick) {
  report::Chart chart{.title = std::move(title), .x = {.label = "step"}, .y = std::move(y)};
  std::size_t epochs = 0;
  for (const recipes::RunResult& run : c.runs) {
    chart.series.push_back(steps_of(run, pick));
    epochs = std::max(epochs, run.history.epochs.size());
  }
  for (int64_t epoch = 1; epoch < static_cast<int64_t>(epochs); ++epoch) {
    chart.marks.push_back(
        {static_cast<double>(epoch * c.steps_per_epoch), fmt::format("epoch {}", epoch)});
  }
  return chart;
}

report::Chart accuracy_chart(const recipes::Comparison& c) {
  report::Chart chart{
      .title = "Test accuracy", .x = {.label = "epoch"}, .y = {.label = "accuracy", .unit = "%"}};
  for (const recipes::RunResult& run : c.runs) {
    report::Series series{.name = run.spec.label};
    for (const train::EpochRecord& epoch : run.history.epochs) {
      if (!epoch.validation || !epoch.validation->accuracy) continue;
      series.x.push_back(static_cast<double>(epoch.epoch));
      series.y.push_back(100 * *epoch.validation->accuracy);
    }
    chart.series.push_back(std::move(series));
  }
  chart.note = "Of the weights as trained, after each epoch, in the run's own precision.";
  return chart;
}

report::Chart test_loss_chart(const recipes::Comparison& c) {
  report::Chart chart{.title = "Test loss", .x = {.label = "epoch"}, .y = {.label = "loss"}};
  for (const recipes::RunResult& run : c.runs) {
    report::Series series{.name = run.spec.label};
    for (const train::EpochRecord& epoch : run.history.epochs) {
      if (!epoch.validation) continue;
      series.x.push_back(static_cast<double>(epoch.epoch));
      series.y.push_back(epoch.validation->loss);
    }
    chart.series.push_back(std::move(series));
  }
  chart.note = "Of the weights as trained, after each epoch, in the run's own precision.";
  return chart;
}

report::StackedBars phase_bars(const recipes::Comparison& c) {
  report::StackedBars bars{.title = "Training time by phase", .unit = "s"};
  std::vector<std::array<double, profile::kPhaseNames.size()>> seconds_of(c.runs.size());
  for (std::size_t run = 0; run < c.runs.size(); ++run)
    for (const train::EpochRecord& epoch : c.runs[run].history.epochs)
      for (std::size_t i = 0; i < epoch.phase_seconds.size(); ++i)
        seconds_of[run][i] += epoch.phase_seconds[i];
  for (const recipes::RunResult& run : c.runs) bars.bars.push_back({.name = run.spec.label});
  for (std::size_t i = 0; i < profile::kPhaseNames.size(); ++i) {
    if (std::ranges::none_of(seconds_of, [i](const auto& of_run) { return of_run[i] > 0; }))
      continue;  // there is no clipping
    bars.parts.emplace_back(profile::kPhaseNames[i]);
    for (std::size_t run = 0; run < c.runs.size(); ++run)
      bars.bars[run].values.push_back(seconds_of[run][i]);
  }
  if (c.machine.device != "cpu") bars.note = "The host's time: the device works behind its back.";
  return bars;
}

report::Chart step_time_chart(const recipes::Comparison& c) {
  report::Chart chart = step_chart(
      c, "Time of a step", {.label = "time", .unit = "ms"},
      [](const train::StepMetrics& s) -> std::optional<double> { return 1e3 * s.seconds; });
  chart.note = "From the end of the step before; every few steps the device is read in it.";
  return chart;
}

report::Chart wait_chart(const recipes::Comparison& c) {
  report::Chart chart = step_chart(
      c, "Waiting for data", {.label = "time", .unit = "ms"},
      [](const train::StepMetrics& s) -> std::optional<double> { return 1e3 * s.data_seconds; });
  chart.note = "The part of a step in which it had no batch: near the whole, loading is the limit.";
  return chart;
}

report::Highlights highlights(const recipes::Comparison& c) {
  report::Highlights result;
  if (learned_differently(c)) {  // the speed of a run that does not learn is nobody's headline
    for (const recipes::RunResult& run : c.runs)
      if (!run.history.steps.empty())
        result.figures.push_back({losses_of(run), run.spec.label + verdict_of(run),
                                  "training loss, first steps to last"});
    return result;
  }
  const recipes::RunResult& first = c.runs.front();
  // The speed of a run that ended in NaN is nobody's headline.
  const auto sound = std::find_if(c.runs.rbegin(), c.runs.rend(), ended_soundly);
  const recipes::RunResult& last = sound == c.runs.rend() ? c.runs.back() : *sound;
  const bool several = c.runs.size() > 1;
  const auto beside = [&](const std::string& of_first) {
    return several ? first.spec.label + ": " + of_first : std::string();
  };
  const auto bytes = [](int64_t n) { return report::format_bytes(static_cast<double>(n)); };
  if (several) {
    result.figures.push_back(
        {speedup_of(c, last), "speed", last.spec.label + " against " + first.spec.label});
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

bool has_points(const report::Chart& chart) {
  return std::ranges::any_of(chart.series, [](const auto& one) { return !one.x.empty(); });
}

report::Section curves_section(const recipes::Comparison& c) {
  report::Chart loss =
      step_chart(c, "Training loss", {.label = "loss"},
                 [](const train::StepMetrics& s) -> std::optional<double> { return s.loss; });
  loss.smoothing = 0.9;
  report::Section curves{"Curves", {std::move(loss)}};
  if (report::Chart test = test_loss_chart(c); has_points(test))
    curves.blocks.emplace_back(std::move(test));
  if (report::Chart accuracy = accuracy_chart(c); has_points(accuracy))
    curves.blocks.emplace_back(std::move(accuracy));
  report::Chart scale =
      step_chart(c, "Loss scale", {.label = "loss scale", .scale = report::Scale::kLog2},
                 [](const train::StepMetrics& s) { return s.loss_scale; });
  scale.steps = true;
  const bool scaled = has_points(scale);
  if (scaled) curves.blocks.emplace_back(std::move(scale));
  report::Chart norm =
      step_chart(c, "Gradient norm", {.label = "L2 norm", .scale = report::Scale::kLog10},
                 [](const train::StepMetrics& s) { return s.grad_norm; });
  norm.smoothing = 0.9;
  norm.note = "Of all gradients together, unscaled and before clipping";
  if (has_points(norm)) curves.blocks.emplace_back(std::move(norm));
  curves.blocks.emplace_back(step_chart(
      c, "Learning rate", {.label = "learning rate"},
      [](const train::StepMetrics& s) -> std::optional<double> { return s.learning_rate; }));
  const bool needs_no_scale = std::ranges::all_of(c.runs, [](const recipes::RunResult& run) {
    return run.spec.precision.autocast != c10::kHalf && run.spec.precision.weights != c10::kHalf;
  });
  if (!scaled && needs_no_scale)
    curves.blocks.emplace_back(report::Paragraph{
        "No loss is scaled here: fp32, tf32, fp64 and bf16 have the exponent range for it."});
  return curves;
}

report::Facts machine_facts(const recipes::Machine& m) {
  report::Facts facts{"", {{"device", m.device + ", " + m.device_name}}};
  if (m.gpu) {
    const auto memory = static_cast<double>(m.gpu->memory_bytes);
    facts.rows.push_back({"memory", report::format_bytes(memory)});
    facts.rows.push_back({"compute capability", m.gpu->compute_capability});
    facts.rows.push_back({"driver", m.gpu->driver + ", CUDA " + m.gpu->cuda});
  }
  facts.rows.push_back({"processor", m.processor});
  facts.rows.push_back({"instruction set", m.instruction_set});
  facts.rows.push_back({"threads", std::to_string(m.threads)});
  facts.rows.push_back({"LibTorch", m.libtorch});
  facts.rows.push_back({"demi", m.demi});
  return facts;
}

}  // namespace

report::Table to_table(const recipes::Comparison& c) {
  report::Table table{.title = c.recipe + ": " + recipes::title(c.machine)};
  const std::vector<Field> fields = fields_of(c);
  for (const Field& field : fields) table.columns.push_back(field.column);
  for (const recipes::RunResult& run : c.runs) {
    table.rows.emplace_back();
    for (const Field& field : fields) table.rows.back().push_back(field.cell(run));
  }
  table.notes = {data_line(c), recipes::describe(c.machine)};
  if (std::string learning = learning_verdict(c); !learning.empty() && !learned_differently(c))
    table.notes.push_back(std::move(learning));
  for (const recipes::RunResult& run : c.runs)
    for (std::string& verdict : health_verdicts(run)) table.notes.push_back(std::move(verdict));
  note_disturbances(c, table.notes);
  note_fp32(c, table.notes);
  note_recipes(c, table.notes);
  note_data(c, table.notes);
  note_flops(c, table.notes);
  if (c.turn_steps > 0)
    table.notes.push_back(
        fmt::format("The runs took turns of {} steps; the process's peak memory, of all of them "
                    "together, is left out.",
                    c.turn_steps));
  table.notes.insert(table.notes.end(), c.notes.begin(), c.notes.end());
  note_slow_causes(c, table.notes);
  std::string stopped;
  for (const recipes::RunResult& run : c.runs)
    if (run.history.stopped) stopped += (stopped.empty() ? "" : ", ") + run.spec.label;
  if (!stopped.empty()) table.notes.push_back("Stopped early, not whole: " + stopped + ".");
  std::string cut;
  for (const recipes::RunResult& run : c.runs)
    if (std::ssize(run.history.steps) < c.steps_per_epoch)
      cut += (cut.empty() ? "" : ", ") + run.spec.label;
  if (!cut.empty())
    table.notes.push_back("Less than an epoch, whose time is foreseen from that: " + cut + ".");
  return table;
}

report::Table class_table(const recipes::Comparison& c) {
  report::Table table{.title = "test accuracy by class"};
  table.columns = {{.name = "class", .align = report::Align::kLeft}};
  for (const recipes::RunResult& run : c.runs) table.columns.push_back({.name = run.spec.label});
  for (std::size_t i = 0; i < c.classes.size(); ++i) {
    table.rows.push_back({c.classes[i]});
    for (const recipes::RunResult& run : c.runs) {
      const bool known = i < run.class_accuracy.size() && std::isfinite(run.class_accuracy[i]);
      table.rows.back().push_back(known ? format_percent(run.class_accuracy[i]) : "");
    }
  }
  return table;
}

report::Page to_page(const recipes::Comparison& c, const std::string& command) {
  report::Page page{.title = (c.runs.size() == 1 ? "demi train " : "demi compare ") + c.recipe,
                    .subtitle = data_line(c)};
  if (c.runs.empty()) return page;
  page.sections = {{"", {highlights(c), to_table(c)}}};
  if (!c.classes.empty() && !c.runs.front().class_accuracy.empty())
    page.sections.push_back({"By class", {class_table(c)}});
  if (auto beside = published_beside(c))
    page.sections.push_back({"Published results", {std::move(*beside)}});
  if (report::Section slow = slow_section(c); !slow.blocks.empty())
    page.sections.push_back(std::move(slow));
  page.sections.push_back(curves_section(c));
  if (auto what_if = recipes::what_if_section(c, command))
    page.sections.push_back(std::move(*what_if));
  if (auto health = health_section(c)) page.sections.push_back(std::move(*health));
  page.sections.push_back(
      {"Where the time goes", {phase_bars(c), step_time_chart(c), wait_chart(c)}});
  page.sections.push_back({"Machine", {machine_facts(c.machine)}});
  page.sections.push_back({"Again", {report::Code{command}}});
  return page;
}

}  // namespace demi::results
