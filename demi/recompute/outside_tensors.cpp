#include "demi/recompute/outside_tensors.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "demi/tensor/version.h"

namespace demi::recomputation {

// The arguments that an op writes to, by its schema.
struct WrittenArguments {
  std::vector<std::size_t> all;
  // Arguments that autograd may save before the op has written to them. A tensor that an op changes
  // in place is saved as a clone, or as the result.
  std::vector<std::size_t> beside;
};

namespace {

thread_local constinit OutsideWatch* present = nullptr;

// Normalisation of LibTorch's does not say in its schema that it writes these.
bool is_running_statistic(const std::string& argument) {
  return argument == "running_mean" || argument == "running_var";
}

WrittenArguments arguments_written_by(const c10::OperatorName& op) {
  WrittenArguments written;
  const auto known = c10::Dispatcher::singleton().findSchema(op);
  if (!known) return written;
  const auto& arguments = known->schema().arguments();
  const bool in_place = op.name.ends_with('_');
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    const bool is_said = alias && alias->isWrite();
    if (!is_said && !is_running_statistic(arguments[i].name())) continue;
    written.all.push_back(i);
    if (is_said && !(in_place && i == 0)) written.beside.push_back(i);
  }
  return written;
}

const WrittenArguments& written_arguments(const c10::OperatorName& op) {
  static thread_local std::unordered_map<c10::OperatorName, WrittenArguments> known;
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

void set_version(const at::Tensor& of, std::int64_t version) {
  auto counter = of.unsafeGetTensorImpl()->version_counter();
  if (counter.enabled()) counter.set_version(version);
}

void give(const OutsideTensors::Written& one) {
  if (one.values.defined()) one.tensor.copy_(one.values);
  set_version(one.tensor, one.version);
}

bool is_same_memory(const at::Tensor& a, const at::Tensor& b) {
  return storage_of(a) == storage_of(b) && a.storage_offset() == b.storage_offset() &&
         a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

at::RecordFunctionCallback observer(at::RecordFunctionCallback::StartCallback start,
                                    at::RecordFunctionCallback::EndCallback end) {
  return at::RecordFunctionCallback(start, end)
      .needsInputs(true)
      .needsOutputs(true)
      .scopes({at::RecordScope::FUNCTION});
}

// A range that a program marks is no op: what runs in it is.
struct MarkedRange final : at::ObserverContext {};

}  // namespace

OutsideWatch::OutsideWatch(Run run) : run_(run), outer_(std::exchange(present, this)) {}

OutsideWatch::OutsideWatch() : OutsideWatch(Run::first) {
  if (!outer_) callback_ = at::addThreadLocalCallback(observer(&on_start, &on_end));
}

OutsideWatch::OutsideWatch(const OutsideTensors& first) : OutsideWatch(Run::second) {
  observers_ = at::get_record_function_tls_();
  at::set_record_function_tls_({});
  at::addThreadLocalCallback(observer(&on_start, &on_end));
  const Unseen unseen;
  for (const auto& one : first.written) {
    is_outside(one.tensor);
    keep(one.tensor);
  }
  for (auto one = first.written.rbegin(); one != first.written.rend(); ++one) give(*one);
}

OutsideWatch::~OutsideWatch() {
  present = outer_;
  if (run_ == Run::first) {
    if (callback_ != 0) at::removeCallback(callback_);
    return;
  }
  at::set_record_function_tls_(observers_);
  const Unseen unseen;
  for (auto one = seen_.written.rbegin(); one != seen_.written.rend(); ++one)
    if (!is_ours_alone(one->tensor)) give(*one);
}

void OutsideWatch::check() const {
  if (failure_) std::rethrow_exception(failure_);
}

// Whether the tensor's memory was made or borrowed by the function without an op, and given up:
// only this object refers to it.
bool OutsideWatch::is_ours_alone(const at::Tensor& tensor) const {
  std::unordered_map<const c10::TensorImpl*, std::uint32_t> ours;
  for (const OutsideWatch* watch = this; watch; watch = watch->outer_)
    for (const auto& one : watch->seen_.written)
      if (storage_of(one.tensor) == storage_of(tensor)) ++ours[one.tensor.unsafeGetTensorImpl()];
  return tensor.storage().use_count() == ours.size() &&
         std::ranges::all_of(seen_.written, [&](const auto& one) {
           const auto held = ours.find(one.tensor.unsafeGetTensorImpl());
           return held == ours.end() || one.tensor.use_count() == held->second;
         });
}

OutsideTensors OutsideWatch::take() {
  check();
  std::erase_if(seen_.written, [&](const auto& one) { return is_ours_alone(one.tensor); });
  std::erase_if(seen_.read, [&](const auto& one) {
    const auto tensor = one.tensor.lock();
    return !tensor || std::ranges::any_of(seen_.written, [&](const auto& written) {
      return storage_of(written.tensor) == tensor->unsafe_storage().unsafeGetStorageImpl();
    });
  });
  return std::move(seen_);
}

bool OutsideWatch::is_outside(const at::Tensor& tensor) {
  const void* storage = storage_of(tensor);
  if (!storage) return false;
  const auto [known, is_first] = known_.try_emplace(storage);
  if (!is_first) return !known->second.is_made;
  known->second.storage = tensor.storage().getWeakStorageImpl();
  const std::int64_t version = tensor::version_of(*tensor.unsafeGetTensorImpl());
  if (run_ == Run::first && version >= 0)
    seen_.read.push_back(
        {decltype(OutsideTensors::Read::tensor)(tensor.getIntrusivePtr()), version});
  return true;
}

bool OutsideWatch::is_kept(const at::Tensor& tensor) const {
  return std::ranges::any_of(seen_.written, [&](const auto& one) {
    return one.values.defined() && is_same_memory(one.tensor, tensor);
  });
}

void OutsideWatch::keep(const at::Tensor& written) {
  if (!is_outside(written) || !written.is_leaf()) return;
  for (const auto& one : seen_.written)
    if (one.tensor.is_same(written)) return;
  const Unseen unseen;
  seen_.written.push_back({written, is_kept(written) ? at::Tensor() : written.clone(),
                           tensor::version_of(*written.unsafeGetTensorImpl())});
}

bool OutsideWatch::is_being_written(const at::Tensor& tensor) const {
  const void* storage = storage_of(tensor);
  return storage && std::ranges::any_of(
                        under_way_, [&](const UnderWay& one) { return one.storage == storage; });
}

void OutsideWatch::start(const at::RecordFunction& op, const WrittenArguments* written) {
  const int depth = depth_++;
  const auto inputs = op.inputs();
  const auto each_of = [&](const std::vector<std::size_t>& arguments, const auto& visit) {
    for (const std::size_t i : arguments)
      if (i < inputs.size()) each_tensor(inputs[i], visit);
  };
  if (written && run_ == Run::second)
    each_of(written->beside, [&](const at::Tensor& tensor) {
      under_way_.push_back({depth, storage_of(tensor)});
    });
  if (depth > 0) return;
  for (const auto& input : inputs)
    each_tensor(input, [&](const at::Tensor& tensor) { is_outside(tensor); });
  if (written) each_of(written->all, [&](const at::Tensor& tensor) { keep(tensor); });
}

void OutsideWatch::end(const at::RecordFunction& op) {
  --depth_;
  while (!under_way_.empty() && under_way_.back().depth == depth_) under_way_.pop_back();
  if (depth_ > 0) return;
  for (const auto& output : op.outputs())
    each_tensor(output, [&](const at::Tensor& tensor) {
      if (const void* storage = storage_of(tensor))
        known_.try_emplace(storage, Known{.is_made = true});
    });
}

// LibTorch catches what an observer throws.
std::unique_ptr<at::ObserverContext> OutsideWatch::on_start(const at::RecordFunction& op) {
  if (!present) return nullptr;
  const WrittenArguments* written = nullptr;
  if (const bool is_called_by_none = present->depth_ == 0;
      is_called_by_none || present->run_ == Run::second) {
    const auto name = op.operator_name();
    if (!name && is_called_by_none) return std::make_unique<MarkedRange>();
    if (name) written = &written_arguments(*name);
  }
  for (OutsideWatch* watch = present; watch; watch = watch->outer()) try {
      watch->start(op, written);
    } catch (...) {
      watch->failure_ = std::current_exception();
    }
  return nullptr;
}

void OutsideWatch::on_end(const at::RecordFunction& op, at::ObserverContext* is_range) {
  if (!present || is_range) return;
  for (OutsideWatch* watch = present; watch; watch = watch->outer()) watch->end(op);
}

}  // namespace demi::recomputation
