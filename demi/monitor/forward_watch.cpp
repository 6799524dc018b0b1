#include "demi/monitor/forward_watch.h"

#include <torch/types.h>

#include <algorithm>

#include "demi/monitor/layers.h"
#include "demi/monitor/unobserved.h"

namespace demi::monitor {
namespace {

bool has_extremes(const at::Tensor& tensor) {
  return tensor.is_floating_point() && tensor.layout() == c10::kStrided && tensor.numel() > 0 &&
         !tensor.device().is_meta();
}

}  // namespace

thread_local ForwardWatch* ForwardWatch::current = nullptr;

struct ForwardWatch::Open final : at::ObserverContext {
  bool is_outermost = false;
  std::vector<const void*> read;  // storages
};

void ForwardWatch::begin() {
  end();
  times_.clear();
  extremes_.clear();
  depth_ = 0;
  current = this;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&ForwardWatch::on_start, &ForwardWatch::on_end)
          .needsInputs(true)
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

void ForwardWatch::end() {
  if (current == this) current = nullptr;
  if (handle_ != at::INVALID_CALLBACK_HANDLE) at::removeCallback(handle_);
  handle_ = at::INVALID_CALLBACK_HANDLE;
}

std::unique_ptr<at::ObserverContext> ForwardWatch::on_start(const at::RecordFunction& op) {
  if (!current) return nullptr;
  if (op.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    current = nullptr;  // the callback itself goes with end()
    return nullptr;
  }
  const Unobserved unobserved;
  auto open = std::make_unique<Open>();
  open->is_outermost = current->depth_++ == 0;
  if (open->is_outermost)
    for_each_tensor(op.inputs(),
                    [&](const at::Tensor& tensor) { open->read.push_back(memory_of(tensor)); });
  return open;
}

void ForwardWatch::on_end(const at::RecordFunction& op, at::ObserverContext* context) {
  if (!current || !context) return;
  const auto& open = static_cast<const Open&>(*context);
  --current->depth_;
  if (!open.is_outermost) return;
  const Unobserved unobserved;
  current->read(op, open);
}

// A view holds what was read already, and what an op allocates without filling it is not reported.
void ForwardWatch::read(const at::RecordFunction& op, const Open& open) {
  const std::string name = op.name();
  if (name.find("empty") != name.npos || name.find("resize") != name.npos) return;
  const std::string key = name + " " + std::to_string(++times_[name]);
  const bool writes = name.ends_with("_");
  for_each_tensor(op.outputs(), [&](const at::Tensor& tensor) {
    if (!has_extremes(tensor)) return;
    if (!writes && std::ranges::find(open.read, memory_of(tensor)) != open.read.end()) return;
    const auto [least, greatest] = at::aminmax(tensor.detach());
    extremes_.emplace_back(key, at::stack({least, greatest}).to(c10::kDouble));
  });
}

std::vector<std::string> ForwardWatch::spoiled() {
  end();
  const at::NoGradGuard no_grad;
  std::map<std::string, std::vector<std::size_t>> by_device;
  for (std::size_t i = 0; i < extremes_.size(); ++i)
    by_device[extremes_[i].second.device().str()].push_back(i);
  std::vector<std::string> found;
  for (const auto& [device, numbers] : by_device) {
    std::vector<at::Tensor> all;
    for (const std::size_t i : numbers) all.push_back(extremes_[i].second);
    const at::Tensor finite = at::stack(all).isfinite().all(1).cpu();
    for (std::size_t k = 0; k < numbers.size(); ++k)
      if (!finite.const_data_ptr<bool>()[k]) found.push_back(extremes_[numbers[k]].first);
  }
  return found;
}

}  // namespace demi::monitor
