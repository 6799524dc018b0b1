#include "lab/recipes/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "demi/profile/memory.h"
#include "demi/profile/scoped_timer.h"
#include "demi/train/trainer.h"
#include "lab/recipes/job.h"

namespace demi::recipes {

std::vector<settings::RunSpec> default_runs(c10::Device device) {
  return {settings::run_in(parse_precision("fp32")),
          settings::run_in(mixed_precision_of(device.type()))};
}

namespace {

JobOptions options_of(const CompareOptions& options, const settings::Resolved& run) {
  JobOptions one = options.run;
  if (options.runs.size() == 1) return one;
  one.prefix = settings::file_name(run.spec.label) + "-";
  if (!one.checkpoints.empty()) one.checkpoints /= settings::file_name(run.spec.label);
  return one;
}

void say_that_it_begins(const CompareOptions& options, const settings::Resolved& run) {
  if (options.run.observer) options.run.observer->on_run_begin(run.spec);
}

// A run that is at its end is tested at once, which frees its memory. A run that is stopped ends
// the others in their next turn.
std::vector<RunResult> in_turns(const CompareOptions& options, const workload::Workload& workload) {
  // Memory that loaders keep from their first batch on belongs to all runs.
  workload.train->batch(0, 0);
  if (workload.test) workload.test->batch(0, 0);
  const c10::Device device = options.runs.front().device;
  profile::quiet_down(device);
  const int64_t shared = profile::memory_use(device).current_bytes;
  std::vector<std::unique_ptr<Job>> jobs;
  for (const settings::Resolved& run : options.runs)
    jobs.push_back(std::make_unique<Job>(run, workload, options_of(options, run), shared));
  std::vector<RunResult> results(jobs.size());
  const auto turn_of = [&](std::size_t i) {
    say_that_it_begins(options, options.runs[i]);
    if (jobs[i]->advance(options.turn_steps)) return;
    results[i] = jobs[i]->finish();
    results[i].peak_resident_bytes = 0;  // the process held all of them
    jobs[i].reset();
  };
  try {
    while (std::ranges::any_of(jobs, [](const auto& job) { return job != nullptr; }))
      for (std::size_t i = 0; i < jobs.size(); ++i)
        if (jobs[i]) turn_of(i);
  } catch (const std::exception&) {
    for (const auto& job : jobs)
      if (job) job->save_last();
    throw;
  }
  return results;
}

void add_flops(Comparison& result, const CompareOptions& options,
               const workload::Workload& workload) {
  const std::vector<double>& peaks = options.peak_flop_per_second;
  for (std::size_t i = 0; i < result.runs.size(); ++i) {
    const double peak = i < peaks.size() ? peaks[i] : 0;
    result.runs[i].flops =
        model_flops(result.runs[i].history, workload.items_of_example, workload.flop_of_item, peak);
  }
}

// Adds a note for each warning about a run's precision, with the runs that it is about. A run that
// was measured to be faster needs none.
void note_slow_precisions(Comparison& result, c10::Device device) {
  std::vector<std::pair<std::string, std::string>> labels_of;  // by warning
  for (const RunResult& run : result.runs) {
    constexpr double kFaster = 1.1;
    const std::string warning = slow_precision_warning(run.spec.precision, device);
    if (warning.empty() || run.speedup > kFaster) continue;
    const auto known =
        std::ranges::find(labels_of, warning, &decltype(labels_of)::value_type::first);
    if (known == labels_of.end())
      labels_of.emplace_back(warning, run.spec.label);
    else
      known->second += ", " + run.spec.label;
  }
  for (const auto& [warning, labels] : labels_of) result.notes.push_back(labels + ": " + warning);
}

void add_notes(Comparison& result, c10::Device device) {
  note_slow_precisions(result, device);
  for (const RunResult& run : result.runs) {
    const std::string& label = run.spec.label;
    if (!run.remark.empty()) result.notes.push_back(label + ": " + run.remark);
    for (const monitor::Origin& origin : run.origins)
      result.notes.push_back(label + ": " + monitor::to_string(origin));
    if (run.history.failed) result.notes.push_back(label + ": " + *run.history.failed);
  }
}

}  // namespace

bool is_disturbed(const Comparison& comparison, const RunResult& run) {
  const auto low = [](const RunResult& r) { return r.cores_share.value_or(1) < kQuietShare; };
  return low(run) || low(comparison.runs.front());
}

Comparison compare(const CompareOptions& options, const workload::Workload& workload) {
  const c10::Device device = options.runs.front().device;
  Comparison result{.recipe = options.recipe,
                    .config = options.config,
                    .machine = machine(device),
                    .training_examples = workload.train->all_examples(),
                    .test_examples = workload.test ? workload.test->all_examples() : 0,
                    .steps_per_epoch = train::steps_of(workload.train->batches(),
                                                       settings::batches_of_step(options.config)),
                    .predicts_tokens = workload.input.kind == data::Kind::tokens,
                    .classes = workload.classes};
  const bool turns = options.turn_steps > 0 && options.runs.size() > 1;
  if (turns) result.turn_steps = options.turn_steps;
  if (!workload.note.empty()) result.notes.push_back(workload.note);
  if (options.config.ranks > 1)
    result.notes.push_back(
        fmt::format("{} ranks, each with batches of {}; times and memory are those of rank 0",
                    options.config.ranks, options.config.batch_size));
  if (turns) {
    result.runs = in_turns(options, workload);
  } else {
    for (const settings::Resolved& run : options.runs) {
      say_that_it_begins(options, run);
      profile::quiet_down(device);
      Job job(run, workload, options_of(options, run), profile::memory_use(device).current_bytes);
      job.advance();
      result.runs.push_back(job.finish());
      if (result.runs.back().history.stopped) break;  // as somebody asked
    }
  }
  for (RunResult& run : result.runs) {
    run.speedup = result.runs.front().seconds_per_epoch / run.seconds_per_epoch;
    result.stopped |= run.history.stopped;
  }
  add_flops(result, options, workload);
  add_notes(result, device);
  return result;
}

}  // namespace demi::recipes
