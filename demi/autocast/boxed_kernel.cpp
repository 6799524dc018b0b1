#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include "demi/autocast/call.h"
#include "demi/autocast/kernels.h"

namespace demi {
namespace {

using torch::jit::Stack;
using Dtypes = c10::SmallVector<c10::ScalarType, 8>;

// Calls visit(tensor) for each tensor in the argument: itself, or the elements of a list (of
// optional ones, too).
template <class Visit>
void for_each_tensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& element : value.toListRef())
      if (element.isTensor()) visit(element.toTensor());
  }
}

c10::IValue cast_value(const c10::IValue& value, Call call) {
  if (value.isTensor()) return *call.cast(value.toTensor());
  ++call.handles;  // the caller's array of tensors, of which the list is a copy
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const c10::IValue& element : value.toListRef())
      list.push_back(*call.cast(element.toTensor()));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& element : value.toListRef())
      list.push_back(element.isTensor() ? std::optional<at::Tensor>(*call.cast(element.toTensor()))
                                        : std::nullopt);
    return list;
  }
  return value;
}

std::optional<std::size_t> dtype_argument(const c10::FunctionSchema& schema) {
  const auto index = schema.argumentIndexWithName("dtype");
  if (!index) return std::nullopt;
  return static_cast<std::size_t>(*index);
}

// norm has overloads with an output dtype and others without: the second kind calls the first.
std::optional<c10::OperatorHandle> with_dtype_appended(const c10::OperatorHandle& op) {
  if (op.operator_name().name != "aten::norm") return std::nullopt;
  const auto& overload = op.operator_name().overload_name;
  if (overload == "Scalar")
    return c10::Dispatcher::singleton().findSchema({"aten::norm", "ScalarOpt_dtype"});
  if (overload == "ScalarOpt_dim")
    return c10::Dispatcher::singleton().findSchema({"aten::norm", "ScalarOpt_dim_dtype"});
  if (overload == "names_ScalarOpt_dim")
    return c10::Dispatcher::singleton().findSchema({"aten::norm", "names_ScalarOpt_dim_dtype"});
  return std::nullopt;
}

// fp32_output: the arguments stay, the output's dtype is named. False: the op has no such argument,
// or the user named one.
bool call_with_fp32_output(const c10::OperatorHandle& op, const Call& call, Stack* stack) {
  const auto& schema = op.schema();
  const std::size_t first = stack->size() - schema.arguments().size();
  const c10::IValue& input = (*stack)[first];
  const bool casts = input.isTensor() && call.eligible(input.toTensor());
  if (const auto dtype = dtype_argument(schema)) {
    if (casts && (*stack)[first + *dtype].isNone())
      (*stack)[first + *dtype] = c10::ScalarType::Float;
    op.callBoxed(stack);
    return true;
  }
  if (const auto appended = with_dtype_appended(op)) {
    stack->emplace_back(casts ? c10::ScalarType::Float : input.toTensor().scalar_type());
    appended->callBoxed(stack);
    return true;
  }
  return false;
}

void run(const c10::OperatorHandle& op, Call& call, Stack* stack) {
  if (call.category == OpCategory::fp32_output && call_with_fp32_output(op, call, stack)) return;
  for (auto value = stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
       value != stack->end(); ++value)
    if (call.dtype != kAsGiven) *value = cast_value(*value, call);
  op.callBoxed(stack);
}

}  // namespace

BoxedKernel::BoxedKernel(c10::DeviceType device, int number)
    : device_(device),
      key_(at::autocast::get_autocast_dispatch_key_from_device_type(device)),
      number_(number) {}

void BoxedKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                             Stack* stack) {
  Call call(device_, number_, /*held=*/1, keys);
  Dtypes seen;
  for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size()))
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      call.add_argument(tensor);
      if (tensor.defined()) seen.push_back(tensor.scalar_type());
    });
  call.choose_dtype();
  try {
    if (call.category == OpCategory::unchanged) {
      // Calls the op as if demi had no kernel for it: the ops that it calls itself (bilinear calls
      // others) run under the region's rules.
      op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key_), stack);
      return;
    }
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(key_);
    run(op, call, stack);
  } catch (c10::Error& error) {
    explain(error, call, seen);
    throw;
  }
}

}  // namespace demi
