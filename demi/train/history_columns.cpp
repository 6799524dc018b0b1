#include "demi/train/history_columns.h"

#include <torch/types.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/error.h"

namespace demi::train {
namespace {

using checkpoint::NamedTensors;

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();
constexpr double kNoNorm = -1;  // NaN is a norm, too
constexpr std::string_view kStepTable = "history/steps.", kEpochTable = "history/epochs.";

double or_none(const std::optional<double>& value) { return value.value_or(kNoNumber); }
std::optional<double> unless_none(double value) {
  return std::isnan(value) ? std::nullopt : std::optional(value);
}

// Columns of so many rows.
class ColumnWriter {
 public:
  ColumnWriter(NamedTensors& to, std::string_view table, std::size_t rows)
      : to_(to), table_(table), rows_(static_cast<int64_t>(rows)) {}

  // `value` of the row i.
  template <class Value>
  void write(const std::string& name, const Value& value) {
    using Number = decltype(value(std::size_t{0}));
    at::Tensor column = at::empty({rows_}, c10::CppTypeToScalarType<Number>::value);
    auto* numbers = column.mutable_data_ptr<Number>();
    for (int64_t i = 0; i < rows_; ++i) numbers[i] = value(static_cast<std::size_t>(i));
    to_[std::string(table_) + name] = std::move(column);
  }

 private:
  NamedTensors& to_;
  std::string_view table_;
  int64_t rows_;
};

class ColumnReader {
 public:
  // `first` decides how many rows there are.
  ColumnReader(const NamedTensors& from, std::string_view table, const char* first)
      : from_(from), table_(table), rows_(column(first).numel()) {}

  std::size_t rows() const { return static_cast<std::size_t>(rows_); }

  bool has(const std::string& name) const { return from_.contains(std::string(table_) + name); }

  // Calls set(i, value) for each row.
  template <class Number, class Set>
  void read(const std::string& name, const Set& set) const {
    const at::Tensor& found = column(name);
    if (found.dim() != 1 || found.numel() != rows_ ||
        found.scalar_type() != c10::CppTypeToScalarType<Number>::value)
      refuse(name, c10::str(found.toString(), " ", found.sizes()));
    const at::Tensor here = found.cpu().contiguous();
    const auto* numbers = here.template const_data_ptr<Number>();
    for (std::size_t i = 0; i < rows(); ++i) set(i, numbers[i]);
  }

 private:
  const at::Tensor& column(const std::string& name) const {
    const auto found = from_.find(std::string(table_) + name);
    if (found == from_.end()) refuse(name, "none");
    return found->second;
  }
  [[noreturn]] void refuse(const std::string& name, const std::string& seen) const {
    throw UsageError({.where = "train.Trainer.resume",
                      .what = "the history in the checkpoint is incomplete",
                      .seen = std::string(table_) + name + ": " + seen,
                      .accepted = "one number a row",
                      .advice = "load a checkpoint that a Trainer saved"});
  }

  const NamedTensors& from_;
  std::string_view table_;
  int64_t rows_;
};

void write_steps(std::span<const StepMetrics> steps, NamedTensors& to) {
  ColumnWriter table(to, kStepTable, steps.size());
  table.write("epoch", [&](std::size_t i) { return steps[i].epoch; });
  table.write("step", [&](std::size_t i) { return steps[i].step; });
  table.write("loss", [&](std::size_t i) { return steps[i].loss; });
  table.write("accuracy", [&](std::size_t i) { return or_none(steps[i].accuracy); });
  table.write("learning_rate", [&](std::size_t i) { return steps[i].learning_rate; });
  table.write("loss_scale", [&](std::size_t i) { return or_none(steps[i].loss_scale); });
  table.write("grad_norm", [&](std::size_t i) { return steps[i].grad_norm.value_or(kNoNorm); });
  table.write("skipped", [&](std::size_t i) { return steps[i].skipped; });
  table.write("skipped_for_norm", [&](std::size_t i) { return steps[i].skipped_for_norm; });
  table.write("seconds", [&](std::size_t i) { return steps[i].seconds; });
  table.write("data_seconds", [&](std::size_t i) { return steps[i].data_seconds; });
}

std::vector<StepMetrics> read_steps(const NamedTensors& from) {
  const ColumnReader table(from, kStepTable, "step");
  std::vector<StepMetrics> steps(table.rows());
  table.read<int64_t>("epoch", [&](std::size_t i, int64_t value) { steps[i].epoch = value; });
  table.read<int64_t>("step", [&](std::size_t i, int64_t value) { steps[i].step = value; });
  table.read<double>("loss", [&](std::size_t i, double value) { steps[i].loss = value; });
  table.read<double>("accuracy",
                     [&](std::size_t i, double value) { steps[i].accuracy = unless_none(value); });
  table.read<double>("learning_rate",
                     [&](std::size_t i, double value) { steps[i].learning_rate = value; });
  table.read<double>(
      "loss_scale", [&](std::size_t i, double value) { steps[i].loss_scale = unless_none(value); });
  if (table.has("grad_norm"))  // checkpoints of older versions have none
    table.read<double>("grad_norm", [&](std::size_t i, double value) {
      if (value != kNoNorm) steps[i].grad_norm = value;
    });
  table.read<bool>("skipped", [&](std::size_t i, bool value) { steps[i].skipped = value; });
  if (table.has("skipped_for_norm"))  // checkpoints of older versions have none
    table.read<bool>("skipped_for_norm",
                     [&](std::size_t i, bool value) { steps[i].skipped_for_norm = value; });
  table.read<double>("seconds", [&](std::size_t i, double value) { steps[i].seconds = value; });
  table.read<double>("data_seconds",
                     [&](std::size_t i, double value) { steps[i].data_seconds = value; });
  return steps;
}

std::string phase_column(std::size_t phase) {
  return "seconds." + std::string(profile::kPhaseNames[phase]);
}

// "metric.3.top5_accuracy": the number keeps the order.
std::string metric_column(std::size_t number, const std::string& name) {
  return "metric." + std::to_string(number) + "." + name;
}

// "has_metric.3": in which epochs it was computed, if not in all that were validated.
std::string has_metric_column(std::size_t number) { return "has_metric." + std::to_string(number); }

const double* metric_in(const EpochRecord& epoch, const std::string& name) {
  if (!epoch.validation) return nullptr;
  for (const auto& [known, value] : epoch.validation->metrics)
    if (known == name) return &value;
  return nullptr;
}

// A resumed run may have other metrics, in another order: each name has one column.
void write_metrics(const std::vector<EpochRecord>& epochs, ColumnWriter& table) {
  std::vector<std::string> names;
  for (const EpochRecord& epoch : epochs)
    for (const auto& [name, value] : epoch.validation.value_or(Evaluation{}).metrics)
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  for (std::size_t m = 0; m < names.size(); ++m) {
    const auto in = [&](std::size_t i) { return metric_in(epochs[i], names[m]); };
    bool in_all = true;
    for (std::size_t i = 0; i < epochs.size(); ++i) in_all &= !epochs[i].validation || in(i);
    table.write(metric_column(m, names[m]),
                [&](std::size_t i) { return in(i) ? *in(i) : kNoNumber; });
    if (!in_all) table.write(has_metric_column(m), [&](std::size_t i) { return in(i) != nullptr; });
  }
}

void write_epochs(const std::vector<EpochRecord>& epochs, NamedTensors& to) {
  ColumnWriter table(to, kEpochTable, epochs.size());
  const auto validation = [&](std::size_t i) {
    return epochs[i].validation.value_or(Evaluation{});
  };
  table.write("epoch", [&](std::size_t i) { return epochs[i].epoch; });
  table.write("examples", [&](std::size_t i) { return epochs[i].examples; });
  table.write("loss", [&](std::size_t i) { return epochs[i].loss; });
  table.write("accuracy", [&](std::size_t i) { return or_none(epochs[i].accuracy); });
  table.write("seconds", [&](std::size_t i) { return epochs[i].seconds; });
  for (std::size_t p = 0; p < profile::kPhaseNames.size(); ++p)
    table.write(phase_column(p), [&](std::size_t i) { return epochs[i].phase_seconds[p]; });
  table.write("validated", [&](std::size_t i) { return epochs[i].validation.has_value(); });
  table.write("validation.loss", [&](std::size_t i) { return validation(i).loss; });
  table.write("validation.accuracy",
              [&](std::size_t i) { return or_none(validation(i).accuracy); });
  table.write("validation.examples", [&](std::size_t i) { return validation(i).examples; });
  table.write("validation.seconds", [&](std::size_t i) { return validation(i).seconds; });
  write_metrics(epochs, table);
}

// Names of the metrics in their order.
std::vector<std::string> metrics_in(const NamedTensors& from) {
  const std::string prefix = std::string(kEpochTable) + "metric.";
  std::map<std::size_t, std::string> names;
  for (auto it = from.lower_bound(prefix); it != from.end() && it->first.starts_with(prefix);
       ++it) {
    const std::string rest = it->first.substr(prefix.size());
    std::size_t number = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    if (error == std::errc() && *end == '.') names[number] = end + 1;
  }
  std::vector<std::string> in_order;
  for (const auto& [number, name] : names) in_order.push_back(name);
  return in_order;
}

void read_validations(const ColumnReader& table, const NamedTensors& from,
                      std::vector<EpochRecord>& epochs) {
  table.read<bool>("validated", [&](std::size_t i, bool value) {
    if (value) epochs[i].validation.emplace();
  });
  const auto read = [&](const std::string& name, const auto& set) {
    table.read<double>(name, [&](std::size_t i, double value) {
      if (epochs[i].validation) set(*epochs[i].validation, value);
    });
  };
  read("validation.loss", [](Evaluation& one, double value) { one.loss = value; });
  read("validation.accuracy",
       [](Evaluation& one, double value) { one.accuracy = unless_none(value); });
  read("validation.seconds", [](Evaluation& one, double value) { one.seconds = value; });
  table.read<int64_t>("validation.examples", [&](std::size_t i, int64_t value) {
    if (epochs[i].validation) epochs[i].validation->examples = value;
  });
  const std::vector<std::string> metrics = metrics_in(from);
  for (std::size_t m = 0; m < metrics.size(); ++m) {
    std::vector<bool> has(epochs.size(), true);
    if (table.has(has_metric_column(m)))
      table.read<bool>(has_metric_column(m), [&](std::size_t i, bool value) { has[i] = value; });
    table.read<double>(metric_column(m, metrics[m]), [&](std::size_t i, double value) {
      if (epochs[i].validation && has[i])
        epochs[i].validation->metrics.emplace_back(metrics[m], value);
    });
  }
}

std::vector<EpochRecord> read_epochs(const NamedTensors& from) {
  const ColumnReader table(from, kEpochTable, "epoch");
  std::vector<EpochRecord> epochs(table.rows());
  table.read<int64_t>("epoch", [&](std::size_t i, int64_t value) { epochs[i].epoch = value; });
  table.read<int64_t>("examples",
                      [&](std::size_t i, int64_t value) { epochs[i].examples = value; });
  table.read<double>("loss", [&](std::size_t i, double value) { epochs[i].loss = value; });
  table.read<double>("accuracy",
                     [&](std::size_t i, double value) { epochs[i].accuracy = unless_none(value); });
  table.read<double>("seconds", [&](std::size_t i, double value) { epochs[i].seconds = value; });
  for (std::size_t p = 0; p < profile::kPhaseNames.size(); ++p)
    if (table.has(phase_column(p)))  // older versions have other phases
      table.read<double>(phase_column(p),
                         [&](std::size_t i, double value) { epochs[i].phase_seconds[p] = value; });
  read_validations(table, from, epochs);
  return epochs;
}

}  // namespace

void write_columns(const History& history, NamedTensors& to, int64_t most) {
  std::span<const StepMetrics> steps = history.steps;
  if (most > 0) steps = steps.last(std::min(steps.size(), static_cast<std::size_t>(most)));
  write_steps(steps, to);
  write_epochs(history.epochs, to);
}

void read_columns(const NamedTensors& from, History& history) {
  history.steps = read_steps(from);
  history.epochs = read_epochs(from);
}

}  // namespace demi::train
