#include "demi/autocast/backward.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

#include "demi/autocast/call.h"

namespace demi {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

struct OpCall {
  std::string op;
  std::vector<c10::ScalarType> dtypes;
};

// The failure of one backward pass, written by the thread that the engine ran the function in.
struct Failure {
  std::mutex mutex;
  std::string function, gradients;
  c10::ScalarType forward_dtype = c10::ScalarType::Undefined;
  OpCall call;
};

// A running function of this thread's backward, with the ops that it has called and that have not
// returned.
struct Observation {
  std::shared_ptr<Failure> failure;
  const Node* function;
  std::string gradients;
  int exceptions = std::uncaught_exceptions();
  std::vector<OpCall> open;
  at::CallbackHandle handle = 0;
};

thread_local std::unique_ptr<Observation> observation;

std::string name_of_function(const Node& node) {
  const std::string name = node.name();  // torch::autograd::CppNode<Name>
  const auto open = name.find('<'), close = name.rfind('>');
  return open == std::string::npos || close <= open ? name
                                                    : name.substr(open + 1, close - open - 1);
}

void record(const OpCall& call) {
  Failure& failure = *observation->failure;
  const std::lock_guard lock(failure.mutex);
  failure.function = name_of_function(*observation->function);
  failure.gradients = observation->gradients;
  if (observation->function->num_inputs() > 0)
    failure.forward_dtype =
        c10::typeMetaToScalarType(observation->function->input_metadata(0).dtype());
  failure.call = call;
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  if (!observation) return nullptr;
  OpCall call{.op = function.name(), .dtypes = {}};
  if (const auto name = function.operator_name(); name && !name->overload_name.empty())
    call.op += "." + name->overload_name;
  for (const auto& value : function.inputs())
    if (value.isTensor() && value.toTensor().defined())
      call.dtypes.push_back(value.toTensor().scalar_type());
  observation->open.push_back(std::move(call));
  return nullptr;
}

// Ends come while the error passes, innermost op first.
void on_end(const at::RecordFunction&, at::ObserverContext*) {
  if (!observation || observation->open.empty()) return;
  const bool failed = std::uncaught_exceptions() > observation->exceptions;
  if (failed) record(observation->open.back());
  failed ? observation.reset() : observation->open.pop_back();
}

void stop_observing() {
  if (!observation) return;
  at::removeCallback(observation->handle);
  observation.reset();
}

struct Begin final : torch::autograd::FunctionPreHook {
  std::shared_ptr<Failure> failure;
  const Node* function = nullptr;

  variable_list operator()(const variable_list& gradients) override {
    observation = std::make_unique<Observation>();
    observation->failure = failure;
    observation->function = function;
    for (const auto& gradient : gradients)
      if (gradient.defined())
        observation->gradients +=
            (observation->gradients.empty() ? "" : ", ") + tensor::name_of(gradient.scalar_type());
    observation->handle = at::addThreadLocalCallback(at::RecordFunctionCallback(&on_start, &on_end)
                                                         .needsInputs(true)
                                                         .scopes({at::RecordScope::FUNCTION}));
    return gradients;
  }
};

// Called where the function returned: what it caught itself is no failure.
struct End final : torch::autograd::FunctionPostHook {
  const Begin* begin;  // a hook of the same node
  explicit End(const Begin* of) : begin(of) {}

  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    stop_observing();
    const std::lock_guard lock(begin->failure->mutex);
    begin->failure->function.clear();
    return outputs;
  }
};

// A torch::autograd::Function of C++, by the type's name: dynamic_cast needs the function.
bool is_custom(const Node& node) {
  return std::string_view(typeid(node).name()).starts_with("N5torch8autograd7CppNodeI");
}

void observe(Node& node, const std::shared_ptr<Failure>& failure) {
  for (const auto& hook : node.pre_hooks())
    if (auto* known = dynamic_cast<Begin*>(hook.get())) {
      known->failure = failure;  // a graph that was retained
      return;
    }
  auto begin = std::make_unique<Begin>();
  begin->failure = failure;
  begin->function = &node;
  node.add_post_hook(std::make_unique<End>(begin.get()));
  node.add_pre_hook(std::move(begin));
}

void observe_functions_of(const at::Tensor& loss, const std::shared_ptr<Failure>& failure) {
  std::unordered_set<const Node*> seen;
  std::vector<Node*> open;
  const auto meet = [&](Node* node) {
    if (node && seen.insert(node).second) open.push_back(node);
  };
  meet(loss.grad_fn().get());
  while (!open.empty()) {
    Node& node = *open.back();
    open.pop_back();
    if (is_custom(node)) observe(node, failure);
    for (const auto& edge : node.next_edges()) meet(edge.function.get());
  }
}

std::string advice(Failure& failure, c10::DeviceType device) {
  constexpr const char* cure =
      "begin the function's forward with demi::CustomForward and its backward with "
      "demi::CustomBackward";
  const std::lock_guard lock(failure.mutex);
  if (failure.function.empty())
    return std::string(
               "[autocast.backward] dtypes that do not go together, in a hook or a node "
               "that demi does not observe; where it is a torch::autograd::Function: ") +
           cure;
  const bool inside = at::autocast::is_autocast_enabled(device);
  return "[autocast.backward] dtypes that do not go together in the backward of " +
         failure.function + "; seen: " + spelled(failure.call.op, failure.call.dtypes) +
         " with gradient " + failure.gradients + "; forward gave " +
         tensor::name_of(failure.forward_dtype) + ", backward runs " +
         (inside ? "inside of" : "outside of") + " a region; " + cure + "; " +
         policy_line(device, failure.call.op, failure.call.dtypes);
}

}  // namespace

void backward(const at::Tensor& loss, const at::Tensor& gradient, std::optional<bool> retain_graph,
              bool create_graph, const std::vector<at::Tensor>& inputs) {
  const auto failure = std::make_shared<Failure>();
  observe_functions_of(loss, failure);
  try {
    if (inputs.empty())
      loss.backward(gradient, retain_graph, create_graph);
    else
      loss.backward(gradient, retain_graph, create_graph, inputs);
  } catch (c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    const bool is_explained = what.find("[autocast.") != std::string::npos;
    if (is_dtype_error(what) && !is_explained)
      error.add_context(advice(*failure, loss.device().type()));
    throw;
  }
}

}  // namespace demi
