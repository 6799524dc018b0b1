#include "demi/recompute/saved_tensor_hooks.h"

#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/version.h>

#include <atomic>
#include <mutex>

namespace demi::recomputation {
namespace {

using torch::autograd::edge_list;
using torch::autograd::Engine;
using torch::autograd::variable_list;

[[gnu::tls_model("initial-exec")]] thread_local constinit SavedTensorScope* scope_of_this_thread =
    nullptr;

// The engine that was there does all of the work.
class HookingEngine final : public Engine {
 public:
  explicit HookingEngine(Engine& behind) : behind_(behind) {}

  variable_list execute(const edge_list& roots, const variable_list& inputs, bool keep_graph,
                        bool create_graph, bool accumulate_grad,
                        const edge_list& outputs) override {
    return behind_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& task,
      decltype(torch::autograd::Edge::function) root,
      torch::autograd::InputBuffer&& buffer) override {
    return behind_.execute_with_graph_task(task, std::move(root), std::move(buffer));
  }
  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return behind_.make_anomaly_metadata();
  }
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    return scope_of_this_thread ? scope_of_this_thread->hooks()
                                : behind_.get_default_saved_variable_hooks();
  }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
  std::vector<std::unique_ptr<torch::autograd::NodeCreationHook>> get_node_creation_hooks()
      override {
    return behind_.get_node_creation_hooks();
  }
#endif

 private:
  Engine& behind_;
};

// Never destroyed: threads may outlive static objects.
constinit std::atomic<Engine*> ours = nullptr;

// Again where another one, Python's, has been put in front since.
void stand_in_front() {
  static std::mutex mutex;
  if (&Engine::get_default_engine() == ours) return;
  const std::lock_guard lock(mutex);
  Engine& present = Engine::get_default_engine();
  if (&present == ours) return;
  ours = new HookingEngine(present);
  torch::autograd::set_default_engine_stub([]() -> Engine& { return *ours; });
}

}  // namespace

SavedTensorScope::SavedTensorScope() : outer_(scope_of_this_thread) {
  stand_in_front();
  scope_of_this_thread = this;
}

SavedTensorScope::~SavedTensorScope() { scope_of_this_thread = outer_; }

SavedTensorScope* SavedTensorScope::innermost() { return scope_of_this_thread; }

}  // namespace demi::recomputation
