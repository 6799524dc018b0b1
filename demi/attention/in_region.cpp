#include "demi/attention/in_region.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include <cmath>

#include "demi/attention/differentiable.h"
#include "demi/attention/draw.h"
#include "demi/attention/mask.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/products/through_fp32.h"
#include "demi/tensor/dtype.h"

namespace demi::sdpa {
namespace {

bool fit_each_other(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool grouped) {
  if (q.dim() != 4 || k.dim() != 4 || v.dim() != 4) return false;
  const bool heads_fit = grouped ? q.size(1) % k.size(1) == 0 : q.size(1) == k.size(1);
  return heads_fit && k.size(1) == v.size(1) && q.size(0) == k.size(0) && k.size(0) == v.size(0) &&
         q.size(3) == k.size(3) && k.size(2) == v.size(2);
}

bool is_fitting_mask(const at::Tensor& mask, const Problem& problem) {
  const bool is_added = mask.is_floating_point() && mask.scalar_type() != at::kDouble;
  return products::is_ordinary({&mask}) && mask.dim() <= 4 &&
         (mask.scalar_type() == at::kBool || is_added) &&
         at::is_expandable_to(mask.sizes(), {problem.q.size(0), problem.q.size(1),
                                             problem.queries(), problem.keys()});
}

}  // namespace

std::optional<at::Tensor> in_region(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                    const std::optional<at::Tensor>& mask, double dropout,
                                    bool causal, std::optional<double> scale, bool grouped) {
  if (!tensor::is_16_bit(q.scalar_type()) || !kernels::cpu_kernels() ||
      !products::is_ordinary({&q, &k, &v}) || q.dim() < 3 || !(dropout >= 0 && dropout <= 1))
    return std::nullopt;
  const bool is_matrices = q.dim() == 3;  // (N, T, E): one head
  const auto with_heads = [&](const at::Tensor& t) { return is_matrices ? t.unsqueeze(1) : t; };
  Documents one{.all = {.q = with_heads(q), .k = with_heads(k), .v = with_heads(v)}};
  Problem& problem = one.all;
  if (!fit_each_other(problem.q, problem.k, problem.v, grouped)) return std::nullopt;
  const Path path = path_for(q.scalar_type());
  if (path == Path::libtorch) return std::nullopt;
  if (mask && mask->defined()) {
    const at::Tensor shaped = is_matrices && mask->dim() == 3 ? mask->unsqueeze(1) : *mask;
    if (causal || !is_fitting_mask(shaped, problem)) return std::nullopt;
    problem.mask = four_dimensions(shaped);
  }
  problem.causal = causal;
  problem.scale = scale.value_or(1 / std::sqrt(double(q.size(-1))));
  if (dropout > 0) {
    const DropoutSeed drawn = draw_seed();
    problem.dropout = {.p = dropout, .seed = drawn.seed, .offset = drawn.offset};
  }
  const at::Tensor out = differentiable(one, path);
  return is_matrices ? out.squeeze(1) : out;
}

}  // namespace demi::sdpa
