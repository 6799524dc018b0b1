#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "demi/autocast/op_policy.h"
#include "demi/backends/backends.h"
#include "demi/core/export.h"
#include "demi/data/loader.h"
#include "demi/distributed/process_group.h"
#include "demi/loop/graph_mode.h"
#include "demi/train/history.h"
#include "demi/train/loss.h"
#include "demi/train/metric.h"
#include "demi/train/names.h"
#include "demi/train/network.h"

namespace demi::loop {
class Step;
}

namespace demi::train {

/// Options of an evaluation.
struct EvaluateOptions {
  Precision precision = parse_precision("fp32");  // the format that the model runs in
  c10::Device device = c10::kCPU;  // where the batches are moved to, and where the model is
  /// Same as TrainerOptions::op_policy.
  std::optional<OpPolicy> op_policy = std::nullopt;
  /// The loss that is reported.
  LossFunction loss = Loss::cross_entropy;
  /// Figures that are computed besides loss and accuracy.
  std::vector<Metric> metrics = {};
  /// true: also the accuracy of each class. No effect with a loss that has no accuracy.
  bool per_class = false;
  /// Whether subnormal numbers count as 0 on a CPU (demi/core/flush_subnormals.h).
  bool flush_subnormals = true;
  /// Same as TrainerOptions::backends.
  Backends backends = {};
  /// Asked before each batch. true: the evaluation ends with the batches so far.
  std::function<bool()> should_stop = {};
  /// Each rank evaluates the batches of its own loader, and all get the same totals: of every
  /// example once, if the loaders are those of data::OrderOptions::keep_all. Stopped on one rank,
  /// it counts as stopped on all. Null: this process alone.
  distributed::ProcessGroup* group = nullptr;
  /// Whether the work of a batch on a GPU, which is forward, loss, metrics and their sums, is
  /// recorded once and replayed (loop::GraphedCall). Batches of a loader that makes them of choices
  /// (data::Loader::choice) are drawn in the graph. A batch with a tensor on the CPU, such as
  /// lengths, runs plainly, and so do all batches of several ranks.
  loop::GraphMode graph = loop::GraphMode::off;
};

/// Evaluations of one network on one loader, of which EvaluateOptions::graph records the batches
/// once: three batches of a shape run plainly, also in an earlier evaluation. The weights may
/// change between two of them. Network and loader outlive it. One thread.
class DEMI_API Evaluator {
 public:
  /// Throws UsageError for what does not fit, and with GraphMode::on where nothing can be recorded;
  /// DeviceError for a device that is not here.
  Evaluator(Network network, const data::Loader& loader, EvaluateOptions options);
  /// Its graphs share memory with those of a Step, between whose calls it evaluates.
  Evaluator(Network network, const data::Loader& loader, EvaluateOptions options,
            loop::Step& beside);
  ~Evaluator();
  Evaluator(Evaluator&&) noexcept;
  Evaluator& operator=(Evaluator&&) noexcept;

  /// Does what demi::train::evaluate() does, with its exceptions; with GraphMode::on it also throws
  /// UsageError for a batch that cannot be recorded.
  Evaluation evaluate();

  /// What has become of EvaluateOptions::graph. Waits for nothing.
  loop::GraphCounts graph_counts() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Loss, accuracy and metrics over all batches of `loader`, in evaluation mode, without gradients.
/// Means weigh each answer that counts alike, or each example for a loss without answers; of none
/// they are NaN, and there is no accuracy. The weights must be on the device already; batches are
/// moved there (data/to_device.h). Puts the module's mode back. Waits for the device after
/// the last batch, unless a metric does so before. Throws what the loader throws, UsageError for
/// what does not fit, DeviceError for a device that is not here.
DEMI_API Evaluation evaluate(const Network& network, const data::Loader& loader,
                             const EvaluateOptions& options);

}  // namespace demi::train
