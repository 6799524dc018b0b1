#include "demi/distributed/stand_in.h"

#include <ATen/ops/alias.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <optional>
#include <utility>

namespace demi::distributed {
namespace {

namespace autograd = torch::autograd;

void take_edge(const at::Tensor& replica, const at::Tensor& from) {
  if (from.grad_fn())
    autograd::impl::set_gradient_edge(replica, autograd::impl::gradient_edge(from));
}

}  // namespace

void share(const at::Tensor& replica, const at::Tensor& parameter) {
  const at::Tensor view = at::alias(parameter);
  c10::TensorImpl* impl = replica.unsafeGetTensorImpl();
  impl->shallow_copy_from(view.getIntrusivePtr());
  const auto* meta = autograd::impl::get_view_autograd_meta(view);
  if (!meta || !meta->has_bw_view()) {
    impl->set_autograd_meta(nullptr);
    return;
  }
  impl->set_autograd_meta(std::make_unique<autograd::DifferentiableViewMeta>(
      impl, autograd::ViewInfo(meta->get_backward_view().base_, nullptr, nullptr), std::nullopt,
      /*shared_view_info=*/true, meta->get_creation_meta()));
  take_edge(replica, view);
}

void stand_for(const at::Tensor& replica, const at::Tensor& copy, const at::Tensor& parameter) {
  c10::TensorImpl* impl = replica.unsafeGetTensorImpl();
  impl->shallow_copy_from(copy.getIntrusivePtr());
  impl->set_autograd_meta(nullptr);
  impl->set_version_counter(parameter.unsafeGetTensorImpl()->version_counter());
  take_edge(replica, copy);
}

}  // namespace demi::distributed
