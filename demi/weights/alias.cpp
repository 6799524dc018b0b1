#include "demi/weights/alias.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

namespace demi::weights {
namespace {

namespace autograd = torch::autograd;

const autograd::AutogradMeta* meta_of(const at::TensorBase& tensor) {
  return static_cast<const autograd::AutogradMeta*>(tensor.unsafeGetTensorImpl()->autograd_meta());
}

at::Tensor share(const at::Tensor& low) {
  auto* impl = low.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(),
                                                  /*allow_tensor_metadata_change=*/true));
}

// Where the leaf takes 16-bit gradients, the view's node must not widen them on the way.
void let_gradient_through(const at::TensorBase& base, c10::ScalarType dtype,
                          const autograd::Edge& edge) {
  const auto* meta = meta_of(base);
  if (!meta || meta->grad_dtype_ != dtype) return;
  const_cast<autograd::InputMetadata&>(edge.function->input_metadata(edge.input_nr))
      .set_grad_dtype(dtype);
}

}  // namespace

Kind kind_of(const at::TensorBase& tensor) {
  const auto* meta = meta_of(tensor);
  if (!meta) return Kind::plain_leaf;
  if (meta->fw_grad_) return Kind::other;
  if (meta->requires_grad_) return Kind::trained_leaf;
  if (meta->is_view_ && tensor.is_view()) return Kind::view;
  const bool plain = !meta->grad_fn_ && !meta->is_view_;
  return plain ? Kind::plain_leaf : Kind::other;
}

at::Tensor alias_of_leaf(const at::Tensor& low, const at::Tensor& leaf) {
  at::Tensor alias = share(low);
  autograd::impl::set_gradient_edge(alias,
                                    autograd::Edge(autograd::impl::grad_accumulator(leaf), 0));
  return alias;
}

at::Tensor alias_of_view(const at::Tensor& low, const at::Tensor& view, bool with_edge) {
  const at::TensorBase& base = view._base();
  at::Tensor alias = share(low);
  alias.unsafeGetTensorImpl()->set_sizes_and_strides(view.sizes(), view.strides(),
                                                     view.storage_offset() - base.storage_offset());
  if (with_edge) {
    auto edge = autograd::impl::gradient_edge(view);
    let_gradient_through(base, low.scalar_type(), edge);
    autograd::impl::set_gradient_edge(alias, std::move(edge));
  }
  return alias;
}

}  // namespace demi::weights
