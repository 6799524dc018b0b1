#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "demi/backends/backends.h"
#include "demi/graph/device_graph.h"
#include "demi/graph/recording_scope.h"
#include "demi/graph/work_trace.h"
#include "demi/loop/job.h"
#include "demi/loop/step.h"
#include "demi/weights/recorded_copies.h"

namespace demi::loop {

/// The graphs of a Step: one for each kind of batch and one for each kind of finish(). A kind is
/// what shapes of inputs, addresses and settings of the model, and the gradients that are there
/// make of it. Each kind runs a few times plainly, on a stream of its own. Two of these runs are
/// compared, op by op; then the next is recorded, and from there on replayed.
class StepGraphs {
 public:
  using Tensors = std::vector<at::Tensor>;
  /// What a batch or a finish() has for its caller.
  struct Output {
    Tensors values;                   // of a batch: its loss, (), and what else it gives
    std::vector<StepResult> results;  // of a finish()
  };
  /// The work itself, with the tensors that it is given.
  using Body = std::function<Output(const Tensors& inputs, const Tensors& targets)>;

  /// Throws UsageError if the work of the job cannot be recorded and Options::graph is `on`.
  /// All outlive the object.
  StepGraphs(const Job& job, const Options& options, const torch::nn::Module& module,
             const graph::GraphSource& source);
  ~StepGraphs();

  /// Why steps run plainly from now on. Empty: they do not.
  const std::string& refusal() const { return refusal_; }

  /// Forward and backward of a batch; leaves the gradients in `.grad`. `weight`: of the loss.
  Output batch(const Tensors& inputs, const Tensors& targets, double weight, const Body& body);
  /// A batch of this step that needs the inside: it runs plainly, and so does the rest of the step.
  Output batch_plainly(const Tensors& inputs, const Tensors& targets, const Body& body);
  /// Whether the exception of the last batch has left a recording, so that nothing of it has run.
  bool has_run_nothing() const { return has_run_nothing_; }
  /// The step that is open was begun elsewhere, and goes on plainly.
  void go_on_plainly() { is_plain_ = true; }
  /// The optimizers' step.
  Output finish(const Body& body);
  /// The step is over, or dropped: gradients are gone.
  void forget();
  /// A parameter is another tensor: all is recorded anew.
  void clear();

  /// Of replays since the object was made.
  std::int64_t replays() const { return replays_; }
  std::int64_t recorded() const { return recorded_; }

 private:
  /// The gradients of all parameters as a recorded batch leaves them, in the graph's memory.
  struct Gradients {
    std::int64_t id;
    Tensors of;
  };
  using Key = std::vector<std::int64_t>;
  struct Kind;

  Output run(Key key, const Tensors& inputs, const Tensors& targets, const Body& body);
  Output run_plainly(const Tensors& inputs, const Tensors& targets, const Body& body);
  Output run_first(Kind& kind, const Tensors& inputs, const Tensors& targets, const Body& body);
  bool record(Kind& kind, const Tensors& inputs, const Tensors& targets, const Body& body);
  bool replay(Kind& kind, const Tensors& inputs, const Tensors& targets, Output& output);
  bool is_replayable();
  bool is_steady(Kind& kind);
  void give_up(const std::string& reason);
  void require_device(const Tensors& given) const;
  Key key_of(std::int64_t kind, const Tensors& inputs, const Tensors& targets, double weight);
  void add_settings(Key& key);
  std::shared_ptr<const Gradients> present_gradients(std::shared_ptr<const Gradients> before);
  void set_gradients(const Tensors& gradients);
  void undo(const Tensors& gradients);
  void make_room();

  const Job& job_;
  const Options& options_;
  const torch::nn::Module& module_;
  const graph::GraphSource& source_;
  Tensors parameters_, buffers_;  // of the models; parameters of the optimizers, too
  graph::NamedTensors held_;      // both, by name
  std::vector<const torch::nn::Module*> modules_;
  std::string refusal_;
  std::optional<c10::Stream> side_;  // of plain runs and recordings
  std::map<Key, std::unique_ptr<Kind>> kinds_;
  std::shared_ptr<const Gradients> gradients_;  // of the step that is open; null: none yet
  bool is_plain_ = false;                       // the step that is open is
  bool has_run_nothing_ = false;
  Backends backends_;
  std::int64_t backends_seen_ = 0, gradients_seen_ = 0, uses_ = 0, replays_ = 0, recorded_ = 0;
};

}  // namespace demi::loop
