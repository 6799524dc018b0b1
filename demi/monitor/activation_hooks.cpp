#include "demi/monitor/activation_hooks.h"

#include <ATen/record_function.h>
#include <torch/types.h>

#include <mutex>
#include <utility>

namespace demi::monitor {

struct ActivationHooks::Watch {
  std::shared_ptr<const Layers> layers;
  std::shared_ptr<std::vector<ExponentCounter>> counters;
  std::shared_ptr<std::mutex> mutex = std::make_shared<std::mutex>();  // backward may use threads
  at::CallbackHandle handle = 0;
  int depth = 0;        // of ops that call ops
  int open_layer = -1;  // whose weights the outermost open op reads, with another tensor
  int last_layer = -1;
  bool in_backward = false;           // forward is over
  std::shared_ptr<bool> last_counts;  // false: a later op of the layer has taken its place

  static thread_local Watch* current;

  void enter(const at::RecordFunction& op);
  void leave(const at::RecordFunction& op);
  void hook(int layer, const at::Tensor& output);
};

thread_local ActivationHooks::Watch* ActivationHooks::Watch::current = nullptr;

void ActivationHooks::Watch::enter(const at::RecordFunction& op) {
  in_backward |= op.scope() == at::RecordScope::BACKWARD_FUNCTION;
  if (in_backward || depth++ > 0) return;
  int layer = -1;
  bool reads_another = false;
  for_each_tensor(op.inputs(), [&](const at::Tensor& tensor) {
    const int found = layers->find(tensor);
    reads_another |= found < 0;
    if (found >= 0) layer = found;
  });
  open_layer = reads_another ? layer : -1;
}

void ActivationHooks::Watch::leave(const at::RecordFunction& op) {
  if (in_backward || --depth > 0 || open_layer < 0) return;
  const int layer = std::exchange(open_layer, -1);
  bool done = false;  // the first output is the activation; an LSTM's others are its state
  for_each_tensor(op.outputs(), [&](const at::Tensor& output) {
    if (std::exchange(done, true) || !output.requires_grad() || !output.is_floating_point() ||
        layers->find(output) >= 0)
      return;
    hook(layer, output);
  });
}

void ActivationHooks::Watch::hook(int layer, const at::Tensor& output) {
  if (layer == last_layer && last_counts) *last_counts = false;
  last_layer = layer;
  last_counts = std::make_shared<bool>(true);
  output.register_hook(
      [to = counters, lock = mutex, counts = last_counts, layer](const at::Tensor& gradient) {
        if (!*counts || !gradient.defined()) return;
        const std::lock_guard guard(*lock);
        (*to)[static_cast<std::size_t>(layer)].add(gradient);
      });
}

ActivationHooks::ActivationHooks(std::shared_ptr<const Layers> layers,
                                 std::shared_ptr<std::vector<ExponentCounter>> counters)
    : watch_(std::make_unique<Watch>()) {
  watch_->layers = std::move(layers);
  watch_->counters = std::move(counters);
  Watch::current = watch_.get();
  const auto enter = [](const at::RecordFunction& op) -> std::unique_ptr<at::ObserverContext> {
    if (Watch::current) Watch::current->enter(op);
    return nullptr;
  };
  const auto leave = [](const at::RecordFunction& op, at::ObserverContext*) {
    if (Watch::current) Watch::current->leave(op);
  };
  watch_->handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(enter, leave)
          .needsInputs(true)
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

ActivationHooks::~ActivationHooks() {
  at::removeCallback(watch_->handle);
  Watch::current = nullptr;
}

}  // namespace demi::monitor
