#pragma once

#include <ATen/autocast_mode.h>
#include <c10/util/MaybeOwned.h>

#include <optional>

#include "demi/autocast/op_table.h"
#include "demi/autocast/parts.h"
#include "demi/autocast/thread_tables.h"
#include "demi/tensor/dtype.h"
#include "demi/weights/weights.h"

// What one op call in an autocast region does with its arguments; shared by the unboxed and the
// boxed kernels.
namespace demi {

constexpr c10::ScalarType kAsGiven = c10::ScalarType::Undefined;

using tensor::is_16_bit;

/// The widest dtype met so far: FP32 beside anything, and where two 16-bit formats meet, since
/// neither holds the other.
inline c10::ScalarType wider(c10::ScalarType a, c10::ScalarType b) {
  if (a == kAsGiven || a == b) return b;
  if (is_16_bit(a) != is_16_bit(b) && a != c10::ScalarType::Float && b != c10::ScalarType::Float)
    return is_16_bit(a) ? a : b;  // the other one is FP8
  return c10::ScalarType::Float;
}

/// A trace, a functorch transform (vmap, grad ...), a mode of Python's or functionalization is
/// around the call, whatever its tensors are: it has to see each cast, and no tensor that it did
/// not see made; nor does functorch take functions that C++ differentiates. `keys` are what the
/// kernel gets.
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
  bool plain;   // not transformed: copies of weights and kernels of ours may serve it
  bool keeps = true;  // copies, as far as inherited settings say
  OpCategory category;
  c10::ScalarType dtype = kAsGiven;  // to cast to

  Call(c10::DeviceType on, int op, int held, c10::DispatchKeySet keys)
      : device(on),
        number(op),
        handles(held),
        plain(!is_transformed(keys)),
        category(find_category()) {}

  bool eligible(const at::Tensor& tensor) const {
    return at::autocast::is_eligible(tensor, device);
  }

  /// Of the argument, into account for promote and for parts of a model with a policy of their own.
  void add_argument(const at::Tensor& tensor) {
    if (category == OpCategory::promote && eligible(tensor))
      dtype = wider(dtype, tensor.scalar_type());
    if (parts_in_use() && tensor.defined())
      if (const auto own = dtype_of_part(tensor)) part = own;
  }
  void add_argument(const std::optional<at::Tensor>& tensor) {
    if (tensor) add_argument(*tensor);
  }
  template <class Other>
  void add_argument(const Other&) {}

  /// After all arguments were seen. Throws for a banned op.
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

  /// "[autocast] aten::dot(fp32, bf16) ... region ... policy line", for a dtype error.
  std::string advice(c10::ArrayRef<c10::ScalarType> dtypes) const;

 private:
  std::optional<c10::ScalarType> part;

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

/// "dot(fp32, bf16)".
std::string spelled(const std::string& op, c10::ArrayRef<c10::ScalarType> dtypes);

/// Whether a message of LibTorch's is about dtypes (also CUDNN_STATUS_BAD_PARAM).
bool is_dtype_error(const std::string& what);

/// What the global policy says of an op ("aten::dot") that was called where no kernel of ours
/// casts, or the line that makes it say something.
std::string policy_line(c10::DeviceType device, const std::string& op,
                        c10::ArrayRef<c10::ScalarType> dtypes);

/// Adds the advice to a dtype error of LibTorch (also CUDNN_STATUS_BAD_PARAM); others stay as they
/// are.
void explain(c10::Error& error, const Call& call, c10::ArrayRef<c10::ScalarType> dtypes);

}  // namespace demi
