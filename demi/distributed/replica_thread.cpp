#include "demi/distributed/replica_thread.h"

#include <ATen/Context.h>

#include <utility>

namespace demi::distributed {

ReplicaThread::ReplicaThread() : thread_([this] { run(); }) {}

ReplicaThread::~ReplicaThread() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ReplicaThread::start(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    task_ = std::move(task);
  }
  changed_.notify_all();
}

void ReplicaThread::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !task_; });
}

void ReplicaThread::run() {
  at::globalContext().setFlushDenormal(false);  // a thread inherits it from the one that made it
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return task_ || ends_; });
    if (!task_) return;
    lock.unlock();
    task_();
    lock.lock();
    task_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace demi::distributed
