#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "demi/backends/backends.h"
#include "demi/graph/device_graph.h"
#include "demi/graph/recording_scope.h"
#include "demi/graph/work_trace.h"
#include "demi/loop/graph_mode.h"
#include "demi/step/step_result.h"
#include "demi/weights/recorded_copies.h"

namespace demi::loop {

/// What graphs share that are never replayed at the same time: their memory, and the stream on
/// which their work first runs and is recorded. One thread.
class GraphMemory {
 public:
  /// The source outlives it.
  GraphMemory(const graph::GraphSource& source, c10::Device device)
      : source_(source), device_(device) {}

  c10::Device device() const { return device_; }
  /// Why nothing can be recorded. Empty: it can.
  std::string obstacle() const { return source_.obstacle(device_); }
  c10::Stream side();
  /// A graph in the memory of those that are alive. Throws UsageError if there is an obstacle.
  std::shared_ptr<graph::DeviceGraph> make();
  /// A graph of make() was recorded, for which the device gave so many bytes.
  void add_bytes(std::int64_t bytes) { bytes_ += bytes; }
  /// How much of the device's memory the graphs which are alive hold.
  std::int64_t bytes() const;

 private:
  const graph::GraphSource& source_;
  c10::Device device_;
  std::optional<c10::Stream> side_;
  std::vector<std::weak_ptr<graph::DeviceGraph>> graphs_;
  std::int64_t bytes_ = 0;
};

/// Work that is done again and again with tensors that are handed over: the part of a step, an
/// evaluation's batch. There is a graph for each kind of it: what shapes of the tensors, addresses
/// and settings of the modules, and policies make of it. Each kind runs a few times plainly, on a
/// stream of its own. Two of these runs are compared, op by op; then the next is recorded, and from
/// there on replayed.
class RecordedWork {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Key = std::vector<std::int64_t>;
  /// What the work has for its caller.
  struct Output {
    Tensors values;
    std::vector<StepResult> results;  // of optimizers
  };
  /// The work itself, with the tensors that it is given, or fixed ones in their place.
  using Body = std::function<Output(const Tensors& given)>;
  /// In messages: "loop.Step", "the step".
  struct Words {
    std::string_view where;
    std::string what;
  };

  RecordedWork(Words words, GraphMode mode, std::shared_ptr<GraphMemory> memory);
  virtual ~RecordedWork();
  RecordedWork(const RecordedWork&) = delete;
  RecordedWork& operator=(const RecordedWork&) = delete;

  /// Whether anything is recorded: nothing is if it was refused from the start.
  bool records() const { return records_; }
  GraphCounts counts() const { return {replays_, recorded_, memory_->bytes(), refusal_}; }
  const std::shared_ptr<GraphMemory>& memory() const { return memory_; }

  /// Nothing is recorded, for this reason: with GraphMode::on throws UsageError, which says
  /// what is `accepted`. `is_said`: somebody has warned of it.
  void refuse_from_the_start(const std::string& reason, std::string_view accepted, bool is_said);

  /// Forgets all kinds. The work reads parameters and buffers of `module`, whose parts outlive the
  /// object, and `more`. Throws what its names do.
  void set_module(const torch::nn::Module& module, const Tensors& more);

  /// Throws UsageError for a tensor of another device.
  void require_device(const Tensors& given) const;

  /// Does the work, by a replay if it can be. `front`: what distinguishes kinds beside all above.
  /// Values and results are in memory of their own.
  Output run(Key front, const Tensors& given, const Body& body);
  /// Does the work on the stream of the recordings: autograd's nodes, libraries' handles and copies
  /// are then known there.
  Output run_plainly(const Tensors& given, const Body& body);
  /// Whether the kind of work that run() would do runs plainly, since it cannot be recorded.
  bool is_refused(Key front, const Tensors& given);
  /// Whether the exception of the last run has left a recording, so that nothing of it has run.
  bool has_run_nothing() const { return has_run_nothing_; }

 protected:
  const Tensors& parameters() const { return parameters_; }

 private:
  struct Kind;

  /// For messages: what runs with these tensors.
  virtual graph::WorkTrace::Work kind_of_work(const Tensors& /*given*/) const {
    return graph::WorkTrace::Work::batch;
  }
  /// What a derived class adds. Before a run that is no replay:
  virtual void will_run_plainly(const Tensors& /*given*/) {}
  /// Tensors that are others each time, and are known.
  virtual Tensors also_given() const { return {}; }
  virtual void will_record() {}
  /// Nothing of what was recorded has run. What the host knows has to be as before.
  virtual void recording_failed() {}
  /// The recording has not failed, and nothing of it has run; returns what follows each replay.
  virtual std::function<void()> has_recorded() { return {}; }

  Key key_of(Key front, const Tensors& given);
  void add_settings(Key& key);
  Output run_first(Kind& kind, const Tensors& given, const Body& body);
  bool record(Kind& kind, const Tensors& given, const Body& body);
  void record_into(Kind& kind, const Tensors& given, const Body& body);
  bool replay(Kind& kind, const Tensors& given, Output& output);
  bool is_steady(Kind& kind);
  void give_up(Kind& kind, const std::string& reason);
  void make_room(bool for_graph);

  const Words words_;
  const GraphMode mode_;
  const std::shared_ptr<GraphMemory> memory_;
  Tensors parameters_, buffers_;
  graph::NamedTensors held_;  // both, by name
  std::vector<const torch::nn::Module*> modules_;
  bool records_ = true;
  std::string refusal_;  // the first
  std::map<Key, std::unique_ptr<Kind>> kinds_;
  bool has_run_nothing_ = false;
  Backends backends_;
  std::int64_t backends_seen_ = 0, uses_ = 0, replays_ = 0, recorded_ = 0;
};

}  // namespace demi::loop
