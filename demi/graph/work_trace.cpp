#include "demi/graph/work_trace.h"

#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string_view>

namespace demi::graph {
namespace {

std::atomic<WorkTrace*> tracing = nullptr;

const void* storage_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()
                                                  : nullptr;
}

template <class Visit>
void each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor())
    visit(value.toTensor());
  else if (value.isTensorList())
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  else if (value.isOptionalTensorList())
    for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList())
      if (tensor) visit(*tensor);
}

// Numbers of the host; empty for what is none.
std::string words_of(const c10::IValue& value) {
  if (value.isDouble()) return c10::str(value.toDouble());
  if (value.isInt()) return c10::str(value.toInt());
  if (value.isBool()) return value.toBool() ? "true" : "false";
  if (value.isIntList()) return c10::str(value.toIntVector());
  if (value.isDoubleList()) return c10::str(value.toDoubleVector());
  if (value.isString()) return value.toStringRef();
  return "";
}

// Ops whose result the host needs to go on.
bool reads_device(std::string_view op) {
  constexpr std::array<std::string_view, 9> kReading{"aten::_local_scalar_dense",
                                                     "aten::nonzero",
                                                     "aten::masked_select",
                                                     "aten::equal",
                                                     "aten::is_nonzero",
                                                     "aten::_unique2",
                                                     "aten::unique_dim",
                                                     "aten::unique_consecutive",
                                                     "aten::item"};
  return std::ranges::find(kReading, op) != kReading.end();
}

// Demangled, torch::autograd::CppNode<Name> is Name.
std::string function_name(std::string_view name) {
  const auto open = name.find('<'), close = name.rfind('>');
  if (open == name.npos || close == name.npos || close <= open) return std::string(name);
  return std::string(name.substr(open + 1, close - open - 1));
}

}  // namespace

// The ops, and the functions of backward, that are open in this thread: autograd's threads have
// their own.
struct WorkTrace::Thread {
  struct Function {
    std::string name;  // empty: the engine's work around hooks and function
    std::int64_t sequence = 0;
  };
  std::vector<std::size_t> ops;
  std::vector<Function> functions;
};

// An op or function of autograd that the trace has seen begin.
struct WorkTrace::Open final : at::ObserverContext {
  explicit Open(bool function) : is_function(function) {}
  bool is_function;  // else an op
};

WorkTrace::Thread& WorkTrace::thread() {
  // A pointer, since a library that dlopen loads has little room for a thread's objects.
  thread_local const auto own = std::make_unique<Thread>();
  return *own;
}

std::unique_ptr<WorkTrace> WorkTrace::begin(const NamedTensors& given, const NamedTensors& held,
                                            Work work) {
  auto trace = std::unique_ptr<WorkTrace>(new WorkTrace(given, held, work));
  WorkTrace* none = nullptr;
  if (!tracing.compare_exchange_strong(none, trace.get())) return nullptr;
  trace->handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&WorkTrace::on_start, &WorkTrace::on_end)
          .needsInputs(true)
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  return trace;
}

WorkTrace::WorkTrace(const NamedTensors& given, const NamedTensors& held, Work work) : work_(work) {
  for (const auto& [name, tensor] : given)
    if (const void* storage = storage_of(tensor)) given_.insert(storage);
  for (const auto& [name, tensor] : held)
    if (const void* storage = storage_of(tensor)) {
      held_.emplace(storage, std::ssize(names_));
      names_.push_back(name);
    }
}

WorkTrace::~WorkTrace() { end(); }

void WorkTrace::end() {
  if (handle_ == 0) return;
  at::removeCallback(handle_);
  handle_ = 0;
  tracing = nullptr;
  if (refused_) obstacle_ = why_ + " (" + place_of(*refused_) + ")";
}

std::unique_ptr<at::ObserverContext> WorkTrace::on_start(const at::RecordFunction& op) {
  WorkTrace* trace = tracing;
  return trace ? trace->start(op) : nullptr;
}

void WorkTrace::on_end(const at::RecordFunction& op, at::ObserverContext* context) {
  if (!context) return;
  const auto& open = static_cast<const Open&>(*context);
  if (WorkTrace* trace = tracing) trace->finish(op, open);
  if (open.is_function)
    thread().functions.pop_back();
  else
    thread().ops.pop_back();
}

WorkTrace::Argument WorkTrace::argument_of(const at::Tensor& tensor, Op& of) {
  Argument seen;
  if (!tensor.defined()) return seen;
  seen.sizes = tensor.sizes().vec();
  const void* storage = storage_of(tensor);
  if (!storage) return seen;
  if (tensor.is_cpu() && tensor.dim() == 0) {  // a device's op takes its number along
    seen.host = "a number on the CPU";
    if (tensor.scalar_type() == at::kDouble) seen.host = c10::str(*tensor.const_data_ptr<double>());
    if (tensor.scalar_type() == at::kFloat) seen.host = c10::str(*tensor.const_data_ptr<float>());
    if (tensor.scalar_type() == at::kLong) seen.host = c10::str(*tensor.const_data_ptr<int64_t>());
    return seen;
  }
  if (made_.contains(storage)) return seen;
  if (const auto named = held_.find(storage); named != held_.end()) {
    held_last_ = named->second;
    of.reads = true;
  }
  seen.is_given = given_.contains(storage);
  if (seen.is_given) return seen;
  seen.storage = storage;
  outside_.emplace(storage, tensor.storage());
  return seen;
}

// An observer must not throw: without memory the trace is short, and so differs from the next.
std::unique_ptr<at::ObserverContext> WorkTrace::start(const at::RecordFunction& op) {
  const std::string_view name = op.name();
  Thread& here = thread();
  const bool is_work = name.starts_with("autograd::");
  if (is_work || op.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    here.functions.push_back({is_work ? "" : function_name(name), op.seqNr()});
    return std::make_unique<Open>(/*function=*/true);
  }
  if (name.find("::") == name.npos) return nullptr;
  const std::lock_guard lock(mutex_);
  Op seen{.name = std::string(name), .is_backward = !here.functions.empty()};
  for (const c10::IValue& input : op.inputs()) {
    if (input.isTensor() || input.isTensorList() || input.isOptionalTensorList())
      each_tensor(input, [&](const at::Tensor& one) {
        if (!seen.is_backward) note_function(one);
        seen.arguments.push_back(argument_of(one, seen));
      });
    else
      seen.arguments.push_back({.host = words_of(input)});
  }
  seen.held = held_last_;
  if (seen.is_backward) {
    seen.function = here.functions.back().name;
    seen.sequence = here.functions.back().sequence;
  }
  seen.outermost = here.ops.empty() ? ops_.size() : here.ops.front();
  here.ops.push_back(ops_.size());
  ops_.push_back(std::move(seen));
  look_for_obstacle(op);
  return std::make_unique<Open>(/*function=*/false);
}

// A node that no op has made is a function's of the program's, whose ops are the last.
void WorkTrace::note_function(const at::Tensor& tensor) {
  if (!tensor.defined() || ops_.empty()) return;
  if (const auto& node = tensor.grad_fn())
    made_by_.emplace(node->sequence_nr(), ops_.back().outermost);
}

// The first note of a node counts: inner ops end first.
void WorkTrace::finish(const at::RecordFunction& op, const Open& open) {
  if (open.is_function) return;
  const std::lock_guard lock(mutex_);
  const bool in_forward = thread().functions.empty();
  for (const c10::IValue& output : op.outputs())
    each_tensor(output, [&](const at::Tensor& tensor) {
      const void* storage = storage_of(tensor);
      if (storage && !outside_.contains(storage) && !given_.contains(storage))
        made_.emplace(storage, tensor.storage().getWeakStorageImpl());
      if (!in_forward || !tensor.defined()) return;
      if (const auto& node = tensor.grad_fn())
        made_by_.emplace(node->sequence_nr(), thread().ops.front());
    });
}

// "features.3" of "features.3.weight"; empty: it is the model's own.
std::string WorkTrace::module_of(std::ptrdiff_t held) const {
  if (held < 0) return "";
  const std::string& name = names_[static_cast<std::size_t>(held)];
  const auto dot = name.rfind('.');
  return dot == name.npos ? "" : name.substr(0, dot);
}

// The module in which an op of forward runs, by what it and its neighbours read.
std::string WorkTrace::module_at(std::size_t op) const {
  const std::size_t outermost = ops_[op].outermost;
  const Op& seen = ops_[outermost];
  const std::string before = module_of(seen.held);
  const bool is_of_model = seen.held >= 0 && before.empty();
  if (work_ == Work::finish || is_of_model)
    return seen.held < 0 ? "" : " after a use of " + names_[static_cast<std::size_t>(seen.held)];
  const auto next = std::find_if(ops_.begin() + static_cast<std::ptrdiff_t>(outermost), ops_.end(),
                                 [](const Op& one) { return one.reads && !one.is_backward; });
  const std::string after = next == ops_.end() ? "" : module_of(next->held);
  if (before.empty()) return after.empty() ? "" : " before the module " + after;
  if (after.empty()) return " after the module " + before;
  if (before == after) return " in the module " + before;
  return " between the modules " + before + " and " + after;
}

std::string WorkTrace::place_of(std::size_t op) const {
  const Op& seen = ops_[op];
  if (!seen.is_backward) {
    const std::string words = module_at(op);
    return seen.name + (words.empty() ? "" : ",") + words;
  }
  if (seen.function.empty()) return seen.name + ", in backward";
  const auto made = made_by_.find(static_cast<std::uint64_t>(seen.sequence));
  return seen.name + " in " + seen.function + ", the backward of an op" +
         (made == made_by_.end() ? "" : module_at(made->second));
}

// Judges the last op.
void WorkTrace::look_for_obstacle(const at::RecordFunction& op) {
  if (refused_) return;
  const std::string& name = ops_.back().name;
  bool on_host = false, on_device = false, on_cuda = false;
  const auto each_input = [&](const auto& visit) {
    for (const c10::IValue& input : op.inputs())
      each_tensor(input, [&](const at::Tensor& one) {
        if (one.defined()) visit(one);
      });
  };
  each_input([&](const at::Tensor& one) {
    on_device |= !one.is_cpu();
    on_cuda |= one.is_cuda();
  });
  // A copy to or from pinned memory is part of a graph.
  each_input(
      [&](const at::Tensor& one) { on_host |= one.is_cpu() && !(on_cuda && one.is_pinned()); });
  if (on_device && reads_device(name))
    why_ = "the host reads the device";
  else if (name == "aten::copy_" && on_host && on_device)
    why_ = "a tensor goes from one device to another";
  if (!why_.empty()) refused_ = ops_.size() - 1;
}

std::string WorkTrace::difference(const WorkTrace& later) const {
  const std::size_t both = std::min(ops_.size(), later.ops_.size());
  for (std::size_t i = 0; i < both; ++i) {
    const Op &a = ops_[i], &b = later.ops_[i];
    if (a.name != b.name)
      return "other ops run each time (" + place_of(i) + "; then " + later.place_of(i) + ")";
    if (a.arguments.size() != b.arguments.size())
      return "an op has other arguments each time (" + later.place_of(i) + ")";
    for (std::size_t k = 0; k < a.arguments.size(); ++k) {
      const Argument &one = a.arguments[k], &other = b.arguments[k];
      if (one.host != other.host)
        return "a number of the host is another one each time (" + later.place_of(i) + ": " +
               one.host + ", then " + other.host + ")";
      if (one.sizes != other.sizes)
        return "a tensor has another shape each time (" + later.place_of(i) + ")";
      if (one.storage != other.storage || one.is_given != other.is_given)
        return "a tensor that was not handed over is another one each time (" + later.place_of(i) +
               ", shape " + c10::str(c10::IntArrayRef(other.sizes)) + ")";
    }
  }
  if (ops_.size() != later.ops_.size()) {
    const WorkTrace& more = ops_.size() > both ? *this : later;
    return "other ops run each time (" + more.place_of(both) + ")";
  }
  return "";
}

std::vector<c10::Storage> WorkTrace::outside() const {
  std::vector<c10::Storage> all;
  for (const auto& [address, storage] : outside_) all.push_back(storage);
  return all;
}

}  // namespace demi::graph
