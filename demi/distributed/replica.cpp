#include "demi/distributed/replica.h"

#include <ATen/Context.h>
#include <ATen/ops/alias.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <optional>
#include <utility>

#include "demi/autocast/parts.h"

namespace demi::distributed {
namespace {

namespace autograd = torch::autograd;

void take_edge(const at::Tensor& replica, const at::Tensor& from) {
  if (from.grad_fn())
    autograd::impl::set_gradient_edge(replica, autograd::impl::gradient_edge(from));
}

}  // namespace

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

namespace {

void take_mark(const at::Tensor& replica, const at::Tensor& parameter) {
  auto mark = mark_of_part(parameter);
  if (mark == mark_of_part(replica)) return;
  mark ? mark_part(replica, *std::move(mark)) : unmark_part(replica);
}

}  // namespace

void share(const at::Tensor& replica, const at::Tensor& parameter) {
  const at::Tensor view = at::alias(parameter);
  c10::TensorImpl* impl = replica.unsafeGetTensorImpl();
  impl->shallow_copy_from(view.getIntrusivePtr());
  const auto* meta = autograd::impl::get_view_autograd_meta(view);
  if (!meta || !meta->has_bw_view()) {
    impl->set_autograd_meta(nullptr);
    return;
  }
  impl->set_autograd_meta(std::make_unique<autograd::DifferentiableViewMeta>(
      impl, autograd::ViewInfo(meta->get_backward_view().base_, nullptr, nullptr), std::nullopt,
      /*shared_view_info=*/true, meta->get_creation_meta()));
  take_edge(replica, view);
}

void stand_for(const at::Tensor& replica, const at::Tensor& copy, const at::Tensor& parameter) {
  c10::TensorImpl* impl = replica.unsafeGetTensorImpl();
  impl->shallow_copy_from(copy.getIntrusivePtr());
  impl->set_autograd_meta(nullptr);
  impl->set_version_counter(parameter.unsafeGetTensorImpl()->version_counter());
  take_edge(replica, copy);
  if (parts_in_use()) take_mark(replica, parameter);
}

}  // namespace demi::distributed
