#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/Storage.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
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
  /// What the work is, for messages.
  enum class Work : std::uint8_t {
    batch,   // forward and backward of a model, which run in its modules
    finish,  // of what follows them
  };
  /// Null if another thread traces. `given`: the tensors that are others each time and are known:
  /// inputs, targets, gradients. `held`: parameters and buffers by the names that the model has for
  /// them ("features.3.weight"), for messages.
  static std::unique_ptr<WorkTrace> begin(const NamedTensors& given, const NamedTensors& held,
                                          Work work = Work::batch);
  ~WorkTrace();
  WorkTrace(const WorkTrace&) = delete;
  WorkTrace& operator=(const WorkTrace&) = delete;

  /// Ops from now on do not count.
  void end();
  /// Why the work cannot be recorded: an op by which the host reads the device, or copies from
  /// pageable memory. Says op and place: the module whose parameters or buffers it reads, else
  /// those whose are read before and after it, since LibTorch's C++ modules have no hooks. Empty:
  /// nothing is known against it. After end().
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
    std::string name;
    std::ptrdiff_t held = -1;   // of the held tensors the one that was read last; -1: none
    bool reads = false;         // by the op itself
    bool is_backward = false;   // autograd's engine has called it
    std::string function;       // of backward, that has called it: "AddmmBackward0"; empty: none
    std::int64_t sequence = 0;  // autograd's number of that one
    std::size_t outermost = 0;  // the op that called it, or its own place
    std::vector<Argument> arguments;
  };
  struct Open;
  struct Thread;

  WorkTrace(const NamedTensors& given, const NamedTensors& held, Work work);
  static Thread& thread();
  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& op);
  static void on_end(const at::RecordFunction& op, at::ObserverContext* context);
  std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& op);
  void finish(const at::RecordFunction& op, const Open& open);
  Argument argument_of(const at::Tensor& tensor, Op& of);
  void note_function(const at::Tensor& tensor);
  void look_for_obstacle(const at::RecordFunction& op);
  std::string place_of(std::size_t op) const;
  std::string module_at(std::size_t op) const;
  std::string module_of(std::ptrdiff_t held) const;

  std::mutex mutex_;
  at::CallbackHandle handle_ = 0;
  const Work work_;
  std::vector<Op> ops_;
  std::ptrdiff_t held_last_ = -1;
  std::optional<std::size_t> refused_;  // the op that is the obstacle
  std::string why_, obstacle_;
  std::unordered_set<const void*> given_;  // storages
  /// Storages that an op has made. While one is known weakly, no other gets its address.
  std::unordered_map<const void*, c10::weak_intrusive_ptr<c10::StorageImpl>> made_;
  std::vector<std::string> names_;                          // of the held tensors
  std::unordered_map<const void*, std::ptrdiff_t> held_;    // their places there, by storage
  std::unordered_map<std::uint64_t, std::size_t> made_by_;  // ops, by the node that they have made
  /// Storages, since a tensor with a graph would keep its nodes alive.
  std::unordered_map<const void*, c10::Storage> outside_;
};

}  // namespace demi::graph
