#include "demi/recompute/outside_writes.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include <cstddef>
#include <string>

#include "demi/tensor/version.h"

namespace demi::recomputation {
namespace {

thread_local constinit OutsideWrites* present = nullptr;

// Normalisation of LibTorch's does not say in its schema that it writes these.
bool is_running_statistic(const std::string& argument) {
  return argument == "running_mean" || argument == "running_var";
}

std::vector<std::size_t> arguments_written_by(const c10::OperatorName& op) {
  std::vector<std::size_t> written;
  const auto known = c10::Dispatcher::singleton().findSchema(op);
  if (!known) return written;
  const auto& arguments = known->schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    if ((alias && alias->isWrite()) || is_running_statistic(arguments[i].name()))
      written.push_back(i);
  }
  return written;
}

const std::vector<std::size_t>& written_arguments(const c10::OperatorName& op) {
  static thread_local std::unordered_map<c10::OperatorName, std::vector<std::size_t>> known;
  const auto found = known.find(op);
  return found != known.end() ? found->second
                              : known.emplace(op, arguments_written_by(op)).first->second;
}

template <class Visit>
void each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor())
    visit(value.toTensor());
  else if (value.isTensorList())
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
}

const void* storage_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()
                                                  : nullptr;
}

// Below autograd, where no version counts it.
struct Unseen {
  at::DisableRecordFunctionGuard unobserved;
  at::AutoDispatchBelowADInplaceOrView below;
};

}  // namespace

OutsideWrites::OutsideWrites() : observers_(at::get_record_function_tls_()), outer_(present) {
  at::set_record_function_tls_({});
  at::addThreadLocalCallback(at::RecordFunctionCallback(&on_start, &on_end)
                                 .needsInputs(true)
                                 .needsOutputs(true)
                                 .scopes({at::RecordScope::FUNCTION}));
  present = this;
}

OutsideWrites::~OutsideWrites() {
  present = outer_;
  at::set_record_function_tls_(observers_);
  const Unseen unseen;
  for (auto one = kept_.rbegin(); one != kept_.rend(); ++one) {
    one->tensor.copy_(one->values);
    auto version = one->tensor.unsafeGetTensorImpl()->version_counter();
    if (version.enabled()) version.set_version(one->version);
  }
}

bool OutsideWrites::is_outside(const at::Tensor& tensor) {
  const void* storage = storage_of(tensor);
  if (!storage || made_.contains(storage)) return false;
  outside_.emplace(storage, tensor.storage());
  return true;
}

void OutsideWrites::keep(const at::Tensor& written) {
  if (!is_outside(written) || !written.is_leaf()) return;
  const Unseen unseen;
  kept_.push_back({written, written.clone(), tensor::version_of(*written.unsafeGetTensorImpl())});
}

std::unique_ptr<at::ObserverContext> OutsideWrites::on_start(const at::RecordFunction& op) {
  if (!present || present->depth_++ > 0) return nullptr;
  const auto inputs = op.inputs();
  for (const auto& input : inputs)
    each_tensor(input, [](const at::Tensor& tensor) { present->is_outside(tensor); });
  const auto name = op.operator_name();
  if (!name) return nullptr;
  for (const std::size_t i : written_arguments(*name))
    if (i < inputs.size())
      each_tensor(inputs[i], [](const at::Tensor& written) { present->keep(written); });
  return nullptr;
}

void OutsideWrites::on_end(const at::RecordFunction& op, at::ObserverContext*) {
  if (!present || --present->depth_ > 0) return;
  for (const auto& output : op.outputs())
    each_tensor(output, [](const at::Tensor& tensor) {
      const void* storage = storage_of(tensor);
      if (storage && !present->outside_.contains(storage)) present->made_.insert(storage);
    });
}

}  // namespace demi::recomputation
