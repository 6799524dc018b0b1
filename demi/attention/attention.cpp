#include "demi/attention/attention.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "demi/attention/differentiable.h"
#include "demi/attention/document_starts.h"
#include "demi/attention/draw.h"
#include "demi/attention/dtype_in_region.h"
#include "demi/attention/mask.h"
#include "demi/core/error.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/products/through_fp32.h"

namespace demi {
namespace {

using sdpa::Documents;
using sdpa::Problem;

template <class Value>
std::string shown(const Value& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

constexpr std::string_view kAttention = "attention.attention";

[[noreturn]] void refuse_attention(std::string_view what, const std::string& seen,
                                   std::string_view accepted) {
  refuse({.where = kAttention, .what = what, .seen = seen, .accepted = accepted});
}

void check_operands(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  for (const at::Tensor* tensor : {&q, &k, &v}) {
    if (!tensor->defined() || !tensor->is_floating_point())
      refuse_attention("q, k and v must be floating point tensors",
                       tensor->defined() ? c10::toString(tensor->scalar_type()) : "no tensor",
                       "fp64, fp32, fp16, bf16");
    if (tensor->dim() != 4)
      refuse_attention("q, k and v have four dimensions", shown(tensor->sizes()),
                       "(batch, heads, tokens, head size)");
    if (tensor->device() != q.device())
      refuse_attention("q, k and v are on several devices", tensor->device().str(), "q's device");
    if (tensor->size(0) != q.size(0))
      refuse_attention("the batches differ", shown(tensor->sizes()), shown(q.size(0)) + " rows");
  }
  if (k.size(1) != v.size(1) || k.size(2) != v.size(2))
    refuse_attention("v does not have k's heads and tokens", shown(v.sizes()), shown(k.sizes()));
  if (q.size(3) != k.size(3) || q.size(3) == 0)
    refuse_attention("k does not have q's head size", shown(k.sizes()), shown(q.size(3)));
  if (k.size(1) == 0 || q.size(1) % k.size(1) != 0)
    refuse_attention("k's heads do not divide q's", shown(k.size(1)),
                     "a divisor of " + shown(q.size(1)));
}

void check_attention_options(const AttentionOptions& o) {
  if (!(o.dropout >= 0 && o.dropout <= 1))
    refuse_attention("dropout is out of range", shown(o.dropout), "0 to 1");
  if (o.scale && !std::isfinite(*o.scale))
    refuse_attention("scale is not finite", shown(*o.scale), "a finite number");
  if (o.past < 0 || (o.past > 0 && !o.causal))
    refuse_attention("past does not fit", shown(o.past), "0 or more, with causal");
}

at::Tensor checked_mask(const at::Tensor& mask, const at::Tensor& q, const at::Tensor& k) {
  if (!mask.defined()) return mask;
  if (mask.scalar_type() != at::kBool && !mask.is_floating_point())
    refuse_attention("the mask's dtype does not fit", c10::toString(mask.scalar_type()),
                     "bool, or floating point");
  const std::vector<std::int64_t> whole{q.size(0), q.size(1), q.size(2), k.size(2)};
  if (mask.dim() > 4 || !at::is_expandable_to(mask.sizes(), whole))
    refuse_attention("the mask cannot be broadcast", shown(mask.sizes()),
                     shown(at::IntArrayRef(whole)));
  if (mask.device() != q.device())
    refuse_attention("the mask is on another device", mask.device().str(), q.device().str());
  return sdpa::four_dimensions(mask);
}

std::vector<std::int64_t> checked_starts(const AttentionOptions& o, const at::Tensor& q,
                                         const at::Tensor& k) {
  if (!o.cu_seqlens.defined()) return {};
  if (o.mask.defined() || o.past > 0)
    refuse_attention("cu_seqlens: documents take neither a mask nor past", "one of them",
                     "neither");
  if (k.size(2) != q.size(2))
    refuse_attention("cu_seqlens: q and k differ in tokens", shown(k.size(2)), shown(q.size(2)));
  return sdpa::document_starts(kAttention, o.cu_seqlens, q.size(0), q.size(2));
}

/// Whether one of them has a tangent of forward mode.
bool have_tangent(std::initializer_list<at::Tensor> tensors) {
  return std::ranges::any_of(tensors, [](const at::Tensor& tensor) {
    return tensor.defined() && tensor._fw_grad(/*level=*/0).defined();
  });
}

/// LibTorch's op; where it has no kernel that chooses among its own, and for a tangent, which its
/// fused kernels refuse, the operations that it is defined by.
at::Tensor op_of_libtorch(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const std::optional<at::Tensor>& mask = std::nullopt, double dropout = 0,
                          bool causal = false, std::optional<double> scale = std::nullopt,
                          bool grouped = false) {
  if ((q.is_cpu() || q.is_cuda()) && !have_tangent({q, k, v, mask.value_or(at::Tensor())}))
    return at::scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale, grouped);
  return std::get<0>(at::_scaled_dot_product_attention_math(
      q, k, v, mask, dropout, causal, /*dropout_mask=*/std::nullopt, scale, grouped));
}

/// The dtype in which the region runs scaled_dot_product_attention. For a device that demi does not
/// know the op itself is asked, on one token.
at::ScalarType dtype_of_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const auto device = q.device().type();
  if (!at::autocast::is_autocast_available(device) || !at::autocast::is_autocast_enabled(device) ||
      !at::autocast::is_eligible(q, device)) {
    for (const at::Tensor* tensor : {&k, &v})
      if (tensor->scalar_type() != q.scalar_type())
        refuse_attention("q, k and v have different dtypes", c10::toString(tensor->scalar_type()),
                         c10::toString(q.scalar_type()));
    return q.scalar_type();
  }
  if (const auto ask = sdpa::dtype_in_region())
    if (const auto dtype = ask(q, k, v)) return *dtype;
  const at::NoGradGuard no_grad;
  const auto one = [](const at::Tensor& t) { return at::zeros({1, 1, 1, 1}, t.options()); };
  return op_of_libtorch(one(q), one(k), one(v)).scalar_type();
}

/// The problem with an ordinary scale: the sign of another one, or all of it, moves into q.
Problem with_ordinary_scale(Problem p) {
  if (sdpa::is_ordinary_scale(p.scale)) return p;
  const bool is_negated = sdpa::is_ordinary_scale(-p.scale);
  p.q = is_negated ? -p.q : p.q * p.scale;
  p.scale = is_negated ? -p.scale : 1;
  return p;
}

/// LibTorch's op, once for each document.
at::Tensor of_libtorch(const Documents& documents) {
  const Problem p = with_ordinary_scale(documents.all);
  at::Tensor mask = p.mask;
  if (p.causal && (mask.defined() || p.past > 0)) {
    const at::Tensor sees =
        at::ones({p.queries(), p.keys()}, p.q.options().dtype(at::kBool)).tril(p.past);
    const auto hidden =
        at::zeros(sees.sizes(), p.q.options()).masked_fill(sees.logical_not(), -INFINITY);
    mask = !mask.defined()                   ? sees
           : mask.scalar_type() == at::kBool ? mask.logical_and(sees)
                                             : mask + hidden;
  }
  if (mask.defined() && mask.scalar_type() != at::kBool) mask = mask.to(p.q.scalar_type());
  const auto attend = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return op_of_libtorch(q, k, v, mask.defined() ? std::optional(mask) : std::nullopt, p.dropout.p,
                          p.causal && !mask.defined(), p.scale, p.heads_per_key() > 1);
  };
  const bool has_tokens = p.q.size(0) * p.queries() > 0;
  if (documents.starts.empty() || !has_tokens) return attend(p.q, p.k, p.v);
  std::vector<at::Tensor> rows, parts;
  const std::int64_t tokens = p.queries();
  for (std::size_t i = 0; i + 1 < documents.starts.size(); ++i) {
    const std::int64_t begin = documents.starts[i], end = documents.starts[i + 1];
    if (begin == end) continue;
    const auto part = [&](const at::Tensor& t) {
      return t.narrow(0, begin / tokens, 1).narrow(2, begin % tokens, end - begin);
    };
    parts.push_back(attend(part(p.q), part(p.k), part(p.v)));
    if (end % tokens != 0) continue;
    rows.push_back(at::cat(parts, 2));
    parts.clear();
  }
  return at::cat(rows, 0);
}

/// Whether demi's own path is to run, not LibTorch's op.
bool runs_here(const Problem& p, sdpa::Path path) {
  return path != sdpa::Path::libtorch && kernels::cpu_kernels() &&
         products::is_ordinary({&p.q, &p.k, &p.v}) && products::is_ordinary({&p.mask});
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const AttentionOptions& o) {
  check_operands(q, k, v);
  check_attention_options(o);
  const auto dtype = dtype_of_attention(q, k, v);
  // Assigned one by one: g++ 12 destroys members of a nested aggregate twice if a later one throws.
  Documents documents;
  documents.starts = checked_starts(o, q, k);
  Problem& all = documents.all;
  all.mask = checked_mask(o.mask, q, k);
  all.q = q.to(dtype);
  all.k = k.to(dtype);
  all.v = v.to(dtype);
  all.causal = o.causal;
  all.past = std::min(o.past, k.size(2));  // more is as all keys, and i + past would overflow
  all.scale = o.scale.value_or(1 / std::sqrt(double(q.size(3))));
  const sdpa::Path path = sdpa::path_for(dtype);
  const bool here = runs_here(all, path);
  if (o.dropout > 0) {
    if (!here && o.dropout_seed)
      refuse({.where = "attention.attention",
              .what = "dropout_seed has no effect: LibTorch's op runs, which draws by itself",
              .seen = "seed " + shown(o.dropout_seed->seed) + " on " + q.device().str(),
              .accepted = "a seed for demi's ways, on a CPU",
              .advice = "leave it out: torch::manual_seed() decides"});
    const DropoutSeed seed = o.dropout_seed ? *o.dropout_seed
                             : here         ? sdpa::draw_seed()
                                            : DropoutSeed{};
    all.dropout = {.p = o.dropout, .seed = seed.seed, .offset = seed.offset};
  }
  return here ? differentiable(documents, path) : of_libtorch(documents);
}

}  // namespace demi
