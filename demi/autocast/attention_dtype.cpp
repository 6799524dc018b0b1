#include "demi/attention/dtype_in_region.h"
#include "demi/autocast/call.h"

namespace demi {
namespace {

// The dtype that Hot<scaled_dot_product_attention> would choose, without a call of the op.
std::optional<c10::ScalarType> dtype_of_region(const at::Tensor& q, const at::Tensor& k,
                                               const at::Tensor& v) {
  static const int number = op_number("aten::scaled_dot_product_attention");
  const c10::DeviceType device = q.device().type();
  if (device != c10::DeviceType::CPU && device != c10::DeviceType::CUDA) return std::nullopt;
  Call now(device, number, /*held=*/0, c10::DispatchKeySet());
  for (const at::Tensor* tensor : {&q, &k, &v}) now.add_argument(*tensor);
  now.choose_dtype();
  return now.dtype == kAsGiven ? q.scalar_type() : now.dtype;
}

[[maybe_unused]] const bool kAttentionKnowsRegions =
    (sdpa::set_dtype_in_region(&dtype_of_region), true);

}  // namespace
}  // namespace demi
