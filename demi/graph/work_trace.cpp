#include "demi/graph/work_trace.h"

#include <c10/util/StringUtil.h>

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

}  // namespace

std::unique_ptr<WorkTrace> WorkTrace::begin(const NamedTensors& given, const NamedTensors& held) {
  auto trace = std::unique_ptr<WorkTrace>(new WorkTrace(given, held));
  WorkTrace* none = nullptr;
  if (!tracing.compare_exchange_strong(none, trace.get())) return nullptr;
  trace->handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&WorkTrace::on_start, &WorkTrace::on_end)
          .needsInputs(true)
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION}));
  return trace;
}

WorkTrace::WorkTrace(const NamedTensors& given, const NamedTensors& held) {
  for (const auto& [name, tensor] : given)
    if (const void* storage = storage_of(tensor)) given_.insert(storage);
  for (const auto& [name, tensor] : held)
    if (const void* storage = storage_of(tensor)) held_.emplace(storage, name);
}

WorkTrace::~WorkTrace() { end(); }

void WorkTrace::end() {
  if (handle_ == 0) return;
  at::removeCallback(handle_);
  handle_ = 0;
  tracing = nullptr;
}

std::unique_ptr<at::ObserverContext> WorkTrace::on_start(const at::RecordFunction& op) {
  if (WorkTrace* trace = tracing) trace->start(op);
  return nullptr;
}

void WorkTrace::on_end(const at::RecordFunction& op, at::ObserverContext*) {
  if (WorkTrace* trace = tracing) trace->finish(op);
}

WorkTrace::Argument WorkTrace::argument_of(const at::Tensor& tensor) {
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
  if (const auto named = held_.find(storage); named != held_.end()) near_ = named->second;
  seen.is_given = given_.contains(storage);
  if (seen.is_given) return seen;
  seen.storage = storage;
  outside_.emplace(storage, tensor.storage());
  return seen;
}

// An observer must not throw: without memory the trace is short, and so differs from the next.
void WorkTrace::start(const at::RecordFunction& op) {
  const std::string_view name = op.name();
  if (name.find("::") == name.npos || name.starts_with("autograd::")) return;
  const std::lock_guard lock(mutex_);
  Op seen{.name = std::string(name)};
  for (const c10::IValue& input : op.inputs()) {
    if (input.isTensor() || input.isTensorList() || input.isOptionalTensorList())
      each_tensor(input,
                  [&](const at::Tensor& one) { seen.arguments.push_back(argument_of(one)); });
    else
      seen.arguments.push_back({.host = words_of(input)});
  }
  seen.near = near_;
  look_for_obstacle(op, seen);
  ops_.push_back(std::move(seen));
}

void WorkTrace::finish(const at::RecordFunction& op) {
  const std::lock_guard lock(mutex_);
  for (const c10::IValue& output : op.outputs())
    each_tensor(output, [&](const at::Tensor& tensor) {
      const void* storage = storage_of(tensor);
      if (storage && !outside_.contains(storage) && !given_.contains(storage))
        made_.emplace(storage, tensor.storage().getWeakStorageImpl());
    });
}

std::string WorkTrace::place_of(const Op& op) {
  return op.near.empty() ? op.name : op.name + ", after a use of " + op.near;
}

void WorkTrace::look_for_obstacle(const at::RecordFunction& op, const Op& seen) {
  if (!obstacle_.empty()) return;
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
  if (on_device && reads_device(seen.name)) {
    obstacle_ = "the host reads the device (" + place_of(seen) + ")";
    return;
  }
  if (seen.name == "aten::copy_" && on_host && on_device)
    obstacle_ = "a tensor goes from one device to another (" + place_of(seen) + ")";
}

std::string WorkTrace::difference(const WorkTrace& later) const {
  const std::size_t both = std::min(ops_.size(), later.ops_.size());
  for (std::size_t i = 0; i < both; ++i) {
    const Op &a = ops_[i], &b = later.ops_[i];
    if (a.name != b.name)
      return "other ops run each time (" + place_of(a) + ", then " + place_of(b) + ")";
    if (a.arguments.size() != b.arguments.size())
      return "an op has other arguments each time (" + place_of(b) + ")";
    for (std::size_t k = 0; k < a.arguments.size(); ++k) {
      const Argument &one = a.arguments[k], &other = b.arguments[k];
      if (one.host != other.host)
        return "a number of the host is another one each time (" + place_of(b) + ": " + one.host +
               ", then " + other.host + ")";
      if (one.sizes != other.sizes)
        return "a tensor has another shape each time (" + place_of(b) + ")";
      if (one.storage != other.storage || one.is_given != other.is_given)
        return "the step reads a tensor that is another one each time and was not handed over (" +
               place_of(b) + ", shape " + c10::str(c10::IntArrayRef(other.sizes)) + ")";
    }
  }
  if (ops_.size() != later.ops_.size()) {
    const Op& more = ops_.size() > both ? ops_[both] : later.ops_[both];
    return "other ops run each time (" + place_of(more) + ")";
  }
  return "";
}

std::vector<c10::Storage> WorkTrace::outside() const {
  std::vector<c10::Storage> all;
  for (const auto& [address, storage] : outside_) all.push_back(storage);
  return all;
}

}  // namespace demi::graph
