#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "demi/monitor/layers.h"
#include "demi/monitor/origin.h"

namespace demi::monitor {

/// An op whose outputs hold Inf or NaN.
struct TracedOp {
  std::string name;               // "aten::div"
  std::int64_t serial = 0;        // by the order in which ops begin
  std::int64_t outermost = 0;     // of the op that called it, or its own
  int depth = 0;                  // 0: outermost
  std::string function;           // of backward, that called it: "DivBackward0"
  std::string forward_op;         // backward: the outermost op whose backward this is
  int layer = -1;                 // whose weights it reads, else the last one before
  bool reads_weights = false;     // of that layer
  std::vector<std::size_t> from;  // ops in TracedOps that wrote the Inf or NaN it reads
  std::vector<std::string> held;  // names of non-finite tensors that were there before
  bool reads_mask = false;        // -Inf that the model holds in a buffer
  bool reads_garbage = false;     // of memory that an op inside another one is to fill
  bool reads_unknown = false;     // Inf or NaN that no op wrote
  bool has_nan = false;
  /// Whether it makes -Inf by design, as masks of attention do, or passes such -Inf on.
  bool on_purpose = false;
  std::vector<Origin::Input> inputs;
  bool starts() const { return from.empty() && !reads_unknown && held.empty(); }
};

/// Observes every op of this thread while it lives, and of autograd's threads that work for it:
/// reads all its inputs and outputs. Only one at a time in a process.
class OpTrace {
 public:
  /// `held`: tensors that are there before, by name: batch, buffers, parameters.
  OpTrace(const Layers& layers, std::vector<std::pair<std::string, at::Tensor>> held);
  ~OpTrace();
  OpTrace(const OpTrace&) = delete;
  OpTrace& operator=(const OpTrace&) = delete;

  /// Ops from now on belong to backward, which begins at this loss.
  void begin_backward(const at::Tensor& loss);

  const std::vector<TracedOp>& forward() const { return forward_; }
  const std::vector<TracedOp>& backward() const { return backward_; }
  /// The op of forward() that made the loss, if it is not finite.
  std::optional<std::size_t> loss() const { return loss_; }
  /// The outermost op that an exception has left last.
  const TracedOp& failed() const { return failed_; }
  bool is_in_backward() const { return in_backward_; }

 private:
  struct Open;
  struct Finding;
  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& op);
  static void on_end(const at::RecordFunction& op, at::ObserverContext* context);

  std::unique_ptr<Open> begin(const at::RecordFunction& op);
  void end(const at::RecordFunction& op, Open& open);
  void note_node(const at::Tensor& tensor, int layer, const std::string& op);
  void note_function(const at::Tensor& tensor);
  void name_work(std::int64_t sequence);
  void place_in_backward(TracedOp& op) const;
  void read_input(const at::Tensor& tensor, Open& open);
  Finding write_output(const at::Tensor& tensor, const Open& open);
  std::vector<TracedOp>& ops() { return in_backward_ ? backward_ : forward_; }
  std::string held_name(const at::Tensor& tensor) const;

  const Layers& layers_;
  std::vector<std::pair<std::string, at::Tensor>> held_;
  std::mutex mutex_;
  at::CallbackHandle handle_ = 0;
  std::vector<TracedOp> forward_, backward_;
  bool in_backward_ = false;
  std::optional<std::size_t> loss_;
  TracedOp failed_;
  std::int64_t serial_ = 0;
  int last_layer_ = -1;
  /// The op, in the present vector, that wrote the Inf or NaN in a tensor, and in a storage.
  std::unordered_map<const void*, std::size_t> writer_, storage_writer_;
  std::unordered_set<const void*> uninitialised_;  // storages
  struct Made {
    int layer = -1;
    std::string op;  // outermost
  };
  std::map<std::uint64_t, Made> made_;  // nodes, by autograd's sequence number
};

}  // namespace demi::monitor
