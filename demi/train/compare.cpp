#include "demi/train/compare.h"

#include "demi/core/error.h"
#include "demi/train/trainer.h"

namespace demi::train {

std::vector<RunSpec> default_runs(c10::Device device) {
  return {parse_run("fp32"), parse_run(mixed_precision_of(device.type()).name)};
}

std::vector<RunSpec> parse_runs(std::string_view text) {
  std::vector<RunSpec> runs;
  while (true) {
    const std::size_t comma = text.find(',');
    runs.push_back(parse_run(text.substr(0, comma)));
    for (std::size_t i = 0; i + 1 < runs.size(); ++i) {
      if (runs[i].label == runs.back().label)
        throw UsageError(
            {.where = "train.parse_runs", .what = "the same run twice", .seen = runs.back().label});
    }
    if (comma == std::string_view::npos) return runs;
    text.remove_prefix(comma + 1);
  }
}

std::string file_name(const RunSpec& run) {
  std::string name = run.label;
  for (char& c : name) {
    if (c == ':' || c == '=') c = '-';
  }
  return name;
}

Comparison compare(const CompareOptions& options, const Workload& workload) {
  Comparison result{
      .recipe = options.recipe,
      .config = options.config,
      .machine = machine(options.device),
      .training_examples = workload.train->examples(),
      .test_examples = workload.test ? workload.test->examples() : 0,
      .steps_per_epoch = steps_of(workload.train->batches(), options.config.accumulate),
      .classes = workload.classes};
  if (!workload.note.empty()) result.notes.push_back(workload.note);
  for (const RunSpec& spec : options.runs) {
    const std::string warning = slow_precision_warning(spec.precision, options.device);
    if (!warning.empty()) result.notes.push_back(spec.label + ": " + warning);
    if (options.on_run_begin) options.on_run_begin(spec);
    RunOptions one = options.run;
    if (options.runs.size() > 1) one.prefix = file_name(spec) + "-";
    result.runs.push_back(run(options.config, spec, workload, options.device, one));
    RunResult& run = result.runs.back();
    run.speedup = result.runs.front().seconds_per_epoch / run.seconds_per_epoch;
    if (run.history.failed) result.notes.push_back(spec.label + ": " + *run.history.failed);
    if (run.history.stopped) {
      result.stopped = true;
      break;
    }
  }
  return result;
}

}  // namespace demi::train
