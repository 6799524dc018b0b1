#pragma once

#include <ATen/autocast_mode.h>
#include <c10/util/MaybeOwned.h>

#include <memory>
#include <optional>

#include "demi/autocast/op_table.h"
#include "demi/autocast/parts.h"
#include "demi/autocast/thread_tables.h"
#include "demi/tensor/dtype.h"
#include "demi/weights/weights.h"

// Casts the arguments of one op call in an autocast region. Used by the unboxed and the boxed
// kernels.
namespace demi {

constexpr c10::ScalarType kAsGiven = c10::ScalarType::Undefined;

using tensor::is_16_bit;

/// The wider of two dtypes. FP32 is wider than the others; of fp16 and bf16 neither holds the
/// other, so the result is FP32.
inline c10::ScalarType wider(c10::ScalarType a, c10::ScalarType b) {
  if (a == kAsGiven || a == b) return b;
  if (is_16_bit(a) != is_16_bit(b) && a != c10::ScalarType::Float && b != c10::ScalarType::Float)
    return is_16_bit(a) ? a : b;  // the other one is FP8
  return c10::ScalarType::Float;
}

/// Whether the call runs inside a trace, a functorch transform (vmap, grad, ...), a mode of
/// Python's or functionalization. These must see each cast and must not get tensors whose making
/// they did not see; functorch does not accept functions that C++ differentiates either. `keys` are
/// the dispatch keys that the kernel gets.
inline bool is_transformed(c10::DispatchKeySet keys) {
  using Key = c10::DispatchKey;
  constexpr c10::DispatchKeySet kTransforms(
      {Key::Tracer, Key::FuncTorchDynamicLayerBackMode, Key::Python, Key::Functionalize});
  return keys.has_any(kTransforms);
}

/// One call of op `number` in this thread's region on this device.
struct Call {
  c10::DeviceType device;
  int number;
  int handles;  // references to each argument that the kernel itself holds (weights::low_precision)
  bool plain;   // not transformed: copies of weights and demi's kernels may be used
  bool keeps = true;  // copies of weights may be used, by inherited settings
  OpCategory category;
  c10::ScalarType dtype = kAsGiven;  // the dtype to cast to

  Call(c10::DeviceType on, int op, int held, c10::DispatchKeySet keys)
      : device(on),
        number(op),
        handles(held),
        plain(!is_transformed(keys)),
        category(find_category()) {}

  bool eligible(const at::Tensor& tensor) const {
    return at::autocast::is_eligible(tensor, device);
  }

  /// Takes one argument into account: its dtype for `promote`, and its own dtype if it belongs to a
  /// part that demi::apply marked.
  void add_argument(const at::Tensor& tensor) {
    if (category == OpCategory::promote && eligible(tensor))
      dtype = wider(dtype, tensor.scalar_type());
    if (parts_in_use() && tensor.defined()) add_mark(tensor);
  }
  void add_argument(const std::optional<at::Tensor>& tensor) {
    if (tensor) add_argument(*tensor);
  }
  template <class Other>
  void add_argument(const Other&) {}

  /// Sets `dtype`. Call after add_argument() for all arguments. Throws UsageError for a banned op.
  void choose_dtype() {
    if (category == OpCategory::lower_precision && !part)
      dtype = at::autocast::get_autocast_dtype(device);
    else
      choose_dtype_out_of_line();
  }

  c10::MaybeOwned<at::Tensor> cast(const at::Tensor& tensor) const {
    using Maybe = c10::MaybeOwned<at::Tensor>;
    if (dtype == kAsGiven || tensor.scalar_type() == dtype || !eligible(tensor))
      return Maybe::borrowed(tensor);
    return Maybe::owned(cast_now(tensor));
  }

  /// Whether an argument has a recipe, and the op runs in the region's dtype.
  bool is_by_recipe() const {
    return quantized && category == OpCategory::lower_precision && is_16_bit(dtype) && !part;
  }
  const std::shared_ptr<const quantization::QuantizedWeight>& recipe() const { return quantized; }

  /// The text that is added to a dtype error: "[autocast] aten::dot(fp32, bf16) ... region ...
  /// policy line".
  std::string advice(c10::ArrayRef<c10::ScalarType> dtypes) const;

 private:
  std::optional<c10::ScalarType> part;
  std::shared_ptr<const quantization::QuantizedWeight> quantized;

  void add_mark(const at::Tensor& tensor);

  OpCategory find_category() {
    const OpTable* table = thread_tables[static_cast<int>(device)];
    if (!table) [[unlikely]]
      table = inherit();
    if (table == follows_global()) table = global_table(device);
    return table->category[number];
  }
  const OpTable* inherit();
  void choose_dtype_out_of_line();
  at::Tensor cast_now(const at::Tensor& tensor) const;
};

/// An op with its arguments' dtypes: "dot(fp32, bf16)".
std::string spelled(const std::string& op, c10::ArrayRef<c10::ScalarType> dtypes);

/// Whether a message of LibTorch's is about dtypes. CUDNN_STATUS_BAD_PARAM counts, too.
bool is_dtype_error(const std::string& what);

/// The rule of the global policy for an op ("aten::dot") that was called outside of demi's kernels,
/// or the policy line that would add a rule.
std::string policy_line(c10::DeviceType device, const std::string& op,
                        c10::ArrayRef<c10::ScalarType> dtypes);

/// Adds the advice to a dtype error of LibTorch (is_dtype_error()). Does not change other errors.
void explain(c10::Error& error, const Call& call, c10::ArrayRef<c10::ScalarType> dtypes);

}  // namespace demi
