#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "demi/core/export.h"

namespace demi::distributed {

/// A thread that does one task at a time. It lives as long as its object, because a thread has
/// OpenMP threads and handles of CUDA libraries of its own, which are costly to make.
class ReplicaThread {
 public:
  ReplicaThread();
  /// Waits for the task.
  ~ReplicaThread();
  ReplicaThread(const ReplicaThread&) = delete;
  ReplicaThread& operator=(const ReplicaThread&) = delete;

  /// The task must not throw. Once, until wait().
  void start(std::function<void()> task);
  /// Waits for the task. Returns at once if there is none.
  void wait();

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> task_;  // empty: none
  bool ends_ = false;
  std::thread thread_;  // the last member: it uses the others
};

// A parameter of the replica is made one of the module's. The members of the replica keep their
// tensors; what these tensors hold is replaced.

/// `replica` becomes a view of all of `parameter`: the same memory, its gradient goes to the
/// parameter, and the copies of the parameter in 16 bits serve the replica, too.
DEMI_API void share(const at::Tensor& replica, const at::Tensor& parameter);

/// `replica` becomes `copy`, which was made of `parameter` by an op that passes gradients on. A
/// graph that saved it notices a later write to the parameter, as one that saved the parameter
/// does. It has the parameter's policy of now (demi::apply).
DEMI_API void stand_for(const at::Tensor& replica, const at::Tensor& copy,
                        const at::Tensor& parameter);

}  // namespace demi::distributed
