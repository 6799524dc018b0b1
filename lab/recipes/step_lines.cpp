#include "lab/recipes/step_lines.h"

#include <fmt/format.h>

#include <limits>
#include <map>
#include <utility>

#include "demi/core/crc32c.h"
#include "demi/core/error.h"

namespace demi::recipes {
namespace {

using report::find_metric;
using report::MetricFields;

const std::string kPrefix = "step_lines.";

std::optional<double> number_in(const MetricFields& line, std::string_view name) {
  const double* found = find_metric<double>(line, name);
  return found ? std::optional(*found) : std::nullopt;
}

/// The step of a line; nullopt for a line of another kind.
std::optional<train::StepMetrics> step_in(const MetricFields& line) {
  const int64_t *epoch = find_metric<int64_t>(line, "epoch"),
                *step = find_metric<int64_t>(line, "step");
  const bool* skipped = find_metric<bool>(line, "skipped");
  const auto loss = number_in(line, "loss"), rate = number_in(line, "learning_rate"),
             seconds = number_in(line, "seconds"), data_seconds = number_in(line, "data_seconds");
  if (!epoch || !step || !skipped || !loss || !rate || !seconds || !data_seconds)
    return std::nullopt;
  return train::StepMetrics{
      .epoch = *epoch,
      .step = *step,
      .loss = *loss,
      .accuracy = number_in(line, "accuracy"),
      .learning_rate = *rate,
      .loss_scale = number_in(line, "loss_scale"),
      .grad_norm = number_in(line, "grad_norm"),
      .skipped = *skipped,
      .skipped_for_norm = find_metric<bool>(line, "skipped_for_norm") != nullptr,
      .seconds = *seconds,
      .data_seconds = *data_seconds};
}

std::string text_of(const StepLines& lines) {
  return fmt::format("{} bytes with the checksum {:08x}", lines.bytes, lines.checksum);
}

struct RunInFile {
  StepLines lines;
  std::vector<train::StepMetrics> steps;
};

/// The steps by run.
std::map<std::string, RunInFile> runs_in(const std::filesystem::path& metrics,
                                         const StepLines& recorded, int64_t end) {
  std::map<std::string, RunInFile> runs;
  report::for_each_metric(metrics, [&](const std::string& text, const MetricFields& line) {
    const std::string* run = find_metric<std::string>(line, "run");
    const auto step = step_in(line);
    if (!run || !step || step->step < recorded.first || step->step > recorded.last) return;
    RunInFile& one = runs.try_emplace(*run, RunInFile{{.first = recorded.first}, {}}).first->second;
    one.lines.add(text, step->step);
    if (step->step < end) one.steps.push_back(*step);
  });
  return runs;
}

}  // namespace

void StepLines::add(std::string_view line, int64_t step) {
  last = step;
  bytes += static_cast<int64_t>(line.size());
  checksum = crc32c(line.data(), line.size(), checksum);
}

StateDict StepLines::to_numbers() const {
  return {{kPrefix + "first", static_cast<double>(first)},
          {kPrefix + "last", static_cast<double>(last)},
          {kPrefix + "bytes", static_cast<double>(bytes)},
          {kPrefix + "crc32c", static_cast<double>(checksum)}};
}

std::optional<StepLines> StepLines::in_numbers(const StateDict& numbers) {
  if (!numbers.contains(kPrefix + "last")) return std::nullopt;
  const auto count = [&](const char* name, int64_t greatest) {
    return state_count(numbers, kPrefix + name, "recipes.run", greatest);
  };
  constexpr int64_t kMost = int64_t{1} << 53;
  return StepLines{
      .first = count("first", kMost),
      .last = count("last", kMost),
      .bytes = count("bytes", kMost),
      .checksum = static_cast<uint32_t>(count("crc32c", std::numeric_limits<uint32_t>::max()))};
}

report::MetricFields step_fields(const std::string& run, const train::StepMetrics& step) {
  MetricFields fields{
      {"run", run}, {"epoch", step.epoch}, {"step", step.step}, {"loss", step.loss}};
  if (step.accuracy) fields.emplace_back("accuracy", *step.accuracy);
  fields.emplace_back("learning_rate", step.learning_rate);
  if (step.loss_scale) fields.emplace_back("loss_scale", *step.loss_scale);
  if (step.grad_norm) fields.emplace_back("grad_norm", *step.grad_norm);
  fields.emplace_back("skipped", step.skipped);
  if (step.skipped_for_norm) fields.emplace_back("skipped_for_norm", true);
  fields.emplace_back("seconds", step.seconds);
  fields.emplace_back("data_seconds", step.data_seconds);
  return fields;
}

EarlierSteps read_earlier_steps(const std::filesystem::path& metrics, const StepLines& recorded,
                                int64_t end) {
  std::map<std::string, RunInFile> runs;
  try {
    runs = runs_in(metrics, recorded, end);
  } catch (const DataError& error) {
    return {{}, error.what()};
  }
  std::string seen;
  for (auto& [run, one] : runs) {
    if (one.lines == recorded) return {std::move(one.steps), ""};
    seen += (seen.empty() ? "" : ", ") + text_of(one.lines);
  }
  return {{},
          fmt::format("the lines of steps {} to {} in {} have {}, and were {}", recorded.first,
                      recorded.last, metrics.string(), seen.empty() ? "0 bytes" : seen,
                      text_of(recorded))};
}

}  // namespace demi::recipes
