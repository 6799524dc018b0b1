#include "demi/attention/fused.h"

#include <ATen/ATen.h>

#include "demi/attention/mask.h"

namespace demi::sdpa {
namespace {

/// The kernel reads the last dimension as dense, and gives its results their arguments' strides, so
/// elements that share memory would overwrite each other there.
at::Tensor dense(const at::Tensor& tensor, at::ScalarType dtype) {
  const at::Tensor cast = tensor.to(dtype);
  const bool is_dense = cast.is_non_overlapping_and_dense() && cast.stride(-1) == 1;
  return is_dense ? cast : cast.contiguous();
}

c10::ScalarType dtype_of_sums(const Problem& problem) {
  return problem.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

std::optional<at::Tensor> mask_of(const Problem& problem, c10::ScalarType dtype) {
  return problem.mask.defined() ? std::optional(dense(added_mask(problem.mask, dtype), dtype))
                                : std::nullopt;
}

}  // namespace

bool is_fused(const Problem& problem, bool differentiates_mask) {
  return problem.dropout.p == 0 && problem.q.size(3) == problem.v.size(3) && !differentiates_mask &&
         (!problem.causal ||
          (problem.past == 0 && !problem.mask.defined() && is_ordinary_scale(problem.scale))) &&
         problem.heads_per_key() == 1;
}

Result forward_fused(const Problem& problem) {
  const auto dtype = dtype_of_sums(problem);
  auto [out, log_sum_exp] = at::_scaled_dot_product_flash_attention_for_cpu(
      dense(problem.q, dtype), dense(problem.k, dtype), dense(problem.v, dtype), 0.0,
      problem.causal, mask_of(problem, dtype), problem.scale);
  return {out.to(problem.q.scalar_type()), log_sum_exp};
}

void backward_fused(const Problem& problem, const Result& result, const at::Tensor& of_out,
                    Gradients& gradients) {
  const auto dtype = dtype_of_sums(problem);
  auto [q, k, v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      dense(of_out, dtype), dense(problem.q, dtype), dense(problem.k, dtype),
      dense(problem.v, dtype), dense(result.out, dtype), result.log_sum_exp, 0.0, problem.causal,
      mask_of(problem, dtype), problem.scale);
  const auto store = [](at::Tensor& to, const at::Tensor& from) {
    if (to.defined()) to = from.to(to.scalar_type());
  };
  store(gradients.q, q);
  store(gradients.k, k);
  store(gradients.v, v);
}

}  // namespace demi::sdpa
