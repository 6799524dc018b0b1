#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "demi/autocast/op_policy.h"
#include "demi/loop/observer.h"
#include "demi/monitor/exponent_histogram.h"
#include "demi/monitor/layers.h"
#include "demi/monitor/step_graph.h"

namespace demi::monitor {

/// The loss scaling of a 16-bit run.
struct TracedScale {
  double begin = 1;
  bool is_dynamic = false;  // halved until no gradient of the batch overflows, but not below 1
};

/// Observes FP32 forward passes of one thread, and follows which tensors a region of the format
/// would hold in 16 bits: those alone are counted, and so are those that it would cast.
class RangeTrace {
 public:
  RangeTrace(c10::ScalarType format, const OpPolicy& policy, TracedScale scale);
  ~RangeTrace();
  RangeTrace(const RangeTrace&) = delete;
  RangeTrace& operator=(const RangeTrace&) = delete;

  /// Ops from now on are those of the batch's forward in a region of the format: the dtypes of
  /// their results are noted, for the first forward in FP32.
  void begin_in_region(const loop::StepView& view);
  /// Ops from now on are those of the batch's forward in FP32.
  void begin(const loop::StepView& view);
  void end_forward();
  /// Call it after backward. Waits for the device.
  void end_batch(const loop::StepView& view);

  const StepGraph& graph() const { return graph_; }
  const KeptInFp32& kept() const { return kept_; }
  /// The least and the greatest loss scale of the batches so far.
  double least_scale() const { return least_scale_; }
  double greatest_scale() const { return greatest_scale_; }

 private:
  struct OpKind {
    std::string name;  // "mul.Tensor"
    OpCategory category = OpCategory::unchanged;
    bool writes = false;  // to an argument: add_, add.out
    bool is_in_place = false;
    bool gives_memory = false;  // whose numbers another op writes
    StepGraph::Follows follows = StepGraph::Follows::all;
  };
  struct Open;
  struct Counts;
  struct Known {
    c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl> tensor;  // keeps the address
    int value = 0;
    std::int64_t serial = 0;  // of the op that made it
    bool is_memory = false;   // that the op around it is to fill
  };

  static thread_local RangeTrace* current;
  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& op);
  static void on_end(const at::RecordFunction& op, at::ObserverContext* context);

  std::unique_ptr<Open> begin_op(const at::RecordFunction& op);
  void end_op(const at::RecordFunction& op, Open& open);
  void observe(const loop::StepView& view);
  bool is_traced(const at::Tensor& tensor) const;
  int layer_of(const Open& open);
  std::string key_of(const Open& open);
  void follow_region(int index, const std::string& key);
  void compare_with_region();
  const OpKind& kind_of(const at::RecordFunction& op);
  void keep_base_parts(const OpPolicy& policy);
  int op_index(const Open& open, const std::string& key, bool reads_weights);
  int value_read(const at::Tensor& tensor);
  bool is_result(const at::Tensor& tensor) const;
  int new_value(std::string name);
  void read_inputs(StepGraph::Op& op, const Open& open);
  void cast_inputs(const StepGraph::Op& op, const Open& open);
  std::vector<at::Tensor> outputs_of(const at::RecordFunction& op, const Open& open);
  void know(const at::Tensor& tensor, int value, std::int64_t serial, bool is_memory = false);
  void count_forward(int value, const at::Tensor& tensor);
  void hook(int value, const at::Tensor& tensor);

  const c10::ScalarType format_;
  const OpPolicy policy_;
  const TracedScale scale_;
  std::map<std::string, OpCategory> rules_;  // by "linear", "mul.Tensor"
  std::map<std::string, OpKind> kinds_;
  StepGraph graph_;
  KeptInFp32 kept_;
  std::vector<bool> low_;                            // by value
  std::map<std::string, int> ops_, outside_;         // by what distinguishes them
  std::map<std::string, bool> in_region_;            // likewise: whether a region gave 16 bits
  std::map<std::string, int> region_times_;          // that an op has run in the region
  std::map<std::string, StepGraph::Follows> ruled_;  // of ops whose dtype a region has changed
  double least_scale_ = 0, greatest_scale_ = 0;

  // The members below are for the present batch.
  std::unique_ptr<Layers> layers_;
  std::vector<std::pair<std::string, at::Tensor>> held_;
  std::shared_ptr<Counts> counts_;
  std::unordered_map<const void*, Known> known_;
  std::map<std::string, int> times_;  // that an op has run
  std::vector<Open*> open_;
  std::int64_t serial_ = 0;
  std::string last_layer_;
  bool is_forward_ = false;
  bool is_region_ = false;
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
};

}  // namespace demi::monitor
