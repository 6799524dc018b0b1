#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/Storage.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "demi/core/export.h"

namespace demi::graph {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// The ops of some work on a device, as LibTorch's dispatcher sees them in this thread and in the
/// threads of autograd that work for it: tells whether the work could be recorded, and whether it
/// is the same each time. One at a time in a process.
class DEMI_API WorkTrace {
 public:
  /// Null if another thread traces. `given`: the tensors that are others each time and are known:
  /// inputs, targets, gradients. `held`: parameters and buffers, by name, for messages.
  static std::unique_ptr<WorkTrace> begin(const NamedTensors& given, const NamedTensors& held);
  ~WorkTrace();
  WorkTrace(const WorkTrace&) = delete;
  WorkTrace& operator=(const WorkTrace&) = delete;

  /// Ops from now on do not count.
  void end();
  /// Why the work cannot be recorded: an op by which the host reads the device, or copies from
  /// pageable memory. Says op and place. Empty: nothing is known against it.
  const std::string& obstacle() const { return obstacle_; }
  /// How `later`, a trace of the same work done again, differs from this one: other ops, other
  /// numbers of the host, tensors that neither was given and that are not the same. Empty: it is
  /// the same.
  std::string difference(const WorkTrace& later) const;
  /// The memory that the work has read, was not given and has not made: who replays it keeps it.
  std::vector<c10::Storage> outside() const;

 private:
  struct Argument {
    std::string host;                 // a number or list of the host, in words
    const void* storage = nullptr;    // of a tensor from outside
    bool is_given = false;            // the tensor was
    std::vector<std::int64_t> sizes;  // of any tensor
  };
  struct Op {
    std::string name, near;  // near: the parameter or buffer that was read last
    std::vector<Argument> arguments;
  };

  WorkTrace(const NamedTensors& given, const NamedTensors& held);
  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& op);
  static void on_end(const at::RecordFunction& op, at::ObserverContext* context);
  void start(const at::RecordFunction& op);
  void finish(const at::RecordFunction& op);
  Argument argument_of(const at::Tensor& tensor);
  static std::string place_of(const Op& op);
  void look_for_obstacle(const at::RecordFunction& op, const Op& seen);

  std::mutex mutex_;
  at::CallbackHandle handle_ = 0;
  std::vector<Op> ops_;
  std::string near_, obstacle_;
  std::unordered_set<const void*> given_;  // storages
  /// Storages that an op has made. While one is known weakly, no other gets its address.
  std::unordered_map<const void*, c10::weak_intrusive_ptr<c10::StorageImpl>> made_;
  std::unordered_map<const void*, std::string> held_;  // names, by storage
  /// Not the tensors: one with a graph would keep its nodes alive.
  std::unordered_map<const void*, c10::Storage> outside_;
};

}  // namespace demi::graph
