#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

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
  /// Until the task is done. Returns at once if there is none.
  void wait();

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> task_;  // empty: none
  bool ends_ = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace demi::distributed
