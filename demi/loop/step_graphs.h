#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "demi/graph/device_graph.h"
#include "demi/loop/job.h"
#include "demi/loop/recorded_work.h"
#include "demi/loop/step.h"

namespace demi::loop {

/// The graphs of a Step: one for each kind of batch and one for each kind of finish(). The
/// gradients that are there are part of a kind.
class StepGraphs final : private RecordedWork {
 public:
  using Tensors = RecordedWork::Tensors;
  /// The loss of a batch, (), and what else it gives; the results of a finish().
  using Output = RecordedWork::Output;
  /// The work itself, with the tensors that it is given.
  using Body = std::function<Output(const Tensors& inputs, const Tensors& targets)>;

  /// Throws UsageError if the work of the job cannot be recorded and Options::graph is `on`.
  /// All outlive the object.
  StepGraphs(const Job& job, const Options& options, const torch::nn::Module& module,
             std::shared_ptr<GraphMemory> memory);

  using RecordedWork::counts, RecordedWork::has_run_nothing;
  /// Whether a step that begins with this batch runs plainly, since its kind cannot be recorded.
  bool is_refused(const Tensors& inputs, const Tensors& targets, double weight);

  /// Forward and backward of a batch; leaves the gradients in `.grad`. `weight`: of the loss.
  Output batch(const Tensors& inputs, const Tensors& targets, double weight, const Body& body);
  /// A batch of this step that needs the inside: it runs plainly, and so does the rest of the step.
  Output batch_plainly(const Tensors& inputs, const Tensors& targets, const Body& body);
  /// The step that is open was begun elsewhere, and goes on plainly.
  void go_on_plainly() { is_plain_ = true; }
  /// The optimizers' step.
  Output finish(const Body& body);
  /// The step is over, or dropped: gradients are gone.
  void forget();
  /// A parameter is another tensor: all is recorded anew.
  void clear();

 private:
  /// The gradients of all parameters as a recorded batch leaves them, in the graph's memory.
  struct Gradients {
    std::int64_t id;
    Tensors of;
  };

  graph::WorkTrace::Work kind_of_work(const Tensors& given) const override;
  void will_run_plainly(const Tensors& given) override;
  Tensors also_given() const override;
  void will_record() override;
  void recording_failed() override;
  std::function<void()> has_recorded() override;

  bool is_replayable();
  Key front_of_batch(const Tensors& inputs, double weight) const;
  std::shared_ptr<const Gradients> present_gradients(std::shared_ptr<const Gradients> before);
  void set_gradients(const Tensors& gradients);

  const Job& job_;
  const torch::nn::Module& module_;
  std::shared_ptr<const Gradients> gradients_;  // of the step that is open; null: none yet
  Tensors before_recording_;                    // `.grad`
  bool is_plain_ = false;                       // the step that is open is
  std::int64_t gradients_seen_ = 0;
};

}  // namespace demi::loop
