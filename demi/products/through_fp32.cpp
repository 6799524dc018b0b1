#include "demi/products/through_fp32.h"

#include <ATen/TracerMode.h>
#include <torch/csrc/autograd/variable.h>

#include "demi/core/bf16_products.h"
#include "demi/kernels/cpu_kernels.h"

namespace demi::products {
namespace {

// The dispatch keys of an ordinary tensor; one that is sparse, conjugate, wrapped by a transform or
// a subclass from Python has others.
constexpr c10::DispatchKeySet kOrdinaryOnCpu =
    c10::DispatchKeySet({c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU,
                         c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::AutocastCPU});
constexpr c10::DispatchKeySet kOrdinaryOnCuda =
    c10::DispatchKeySet({c10::DispatchKey::CUDA, c10::DispatchKey::AutogradCUDA,
                         c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::AutocastCUDA});

bool is_ordinary_tensor(const at::Tensor& tensor, c10::DeviceType device) {
  const auto ordinary = device == c10::kCPU    ? kOrdinaryOnCpu
                        : device == c10::kCUDA ? kOrdinaryOnCuda
                                               : c10::DispatchKeySet();
  if (!ordinary.has_all(tensor.key_set()) || tensor.numel() == 0) return false;
  const auto* meta = tensor.unsafeGetTensorImpl()->autograd_meta();
  return !meta || !meta->fw_grad(/*level=*/0, tensor).defined();
}

}  // namespace

const std::array<bool, 2>& slow_dtypes() {
#if defined(__x86_64__)
  // True even with AVX512_FP16: oneDNN 3.x has no kernel for the gradient of a convolution's
  // weights in fp16, and uses its reference, a plain loop.
  constexpr bool kFp16 = true;
#else
  constexpr bool kFp16 = false;
#endif
  static const std::array<bool, 2> result{bf16_products() == Bf16Products::fp32, kFp16};
  return result;
}

namespace {

// Whether a trace, which has to see the ops, or functorch, which accepts no function that C++
// differentiates, is active; both may hold ordinary tensors.
bool is_transformed() {
  return at::tracer::impl::is_dispatch_enabled() ||
         c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerBackMode);
}

}  // namespace

bool is_ordinary(std::initializer_list<const at::Tensor*> tensors, c10::DeviceType device) {
  at::ScalarType dtype = at::ScalarType::Undefined;
  for (const at::Tensor* tensor : tensors) {
    if (!tensor->defined()) continue;
    if (dtype == at::ScalarType::Undefined) dtype = tensor->scalar_type();
    if (tensor->scalar_type() != dtype || !is_ordinary_tensor(*tensor, device)) return false;
  }
  return !is_transformed();
}

bool takes(std::initializer_list<const at::Tensor*> tensors) {
  for (const at::Tensor* tensor : tensors)
    if (tensor->defined())
      return slow_in(tensor->scalar_type()) && kernels::cpu_kernels() && is_ordinary(tensors);
  return false;
}

}  // namespace demi::products
