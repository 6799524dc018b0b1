#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "demi/attention/attention.h"

// Attention written out in FP64.
namespace demi::sdpa {

struct Operands {
  at::Tensor q, k, v;

  std::vector<at::Tensor> leaves() const { return {q, k, v}; }
  Operands to(at::ScalarType dtype) const {
    const auto leaf = [&](const at::Tensor& t) { return t.detach().to(dtype).requires_grad_(); };
    return {leaf(q), leaf(k), leaf(v)};
  }
};

struct Shape {
  std::int64_t rows = 2, heads = 4, key_heads = 4, queries = 37, keys = 37, size = 12,
               value_size = 12;
};

/// Operands in FP64, of numbers that bf16 holds.
inline Operands operands(const Shape& s) {
  torch::manual_seed(3);
  const auto numbers = [](at::IntArrayRef sizes) {
    return torch::randn(sizes).to(torch::kBFloat16).to(torch::kDouble).requires_grad_();
  };
  return {numbers({s.rows, s.heads, s.queries, s.size}),
          numbers({s.rows, s.key_heads, s.keys, s.size}),
          numbers({s.rows, s.key_heads, s.keys, s.value_size})};
}

/// The keys that each query sees, written as a loop.
inline at::Tensor seen(std::int64_t queries, std::int64_t keys, const AttentionOptions& o) {
  at::Tensor sees = torch::ones({queries, keys}, torch::kBool);
  auto at = sees.accessor<bool, 2>();
  for (std::int64_t i = 0; i < queries; ++i)
    for (std::int64_t j = 0; j < keys; ++j) at[i][j] = !o.causal || j <= i + o.past;
  return sees;
}

/// `keep` (N, H, T, S) or undefined: a factor of each weight.
inline at::Tensor written_out(const Operands& of, const AttentionOptions& o,
                              const at::Tensor& keep = {}) {
  const auto group = of.q.size(1) / of.k.size(1);
  const auto k = of.k.repeat_interleave(group, 1), v = of.v.repeat_interleave(group, 1);
  auto s =
      at::matmul(of.q, k.transpose(-1, -2)) * o.scale.value_or(1 / std::sqrt(double(of.q.size(3))));
  constexpr double kHidden = -std::numeric_limits<double>::infinity();
  if (o.mask.defined())
    s = o.mask.scalar_type() == torch::kBool ? s.masked_fill(o.mask.logical_not(), kHidden)
                                             : s + o.mask;
  s = s.masked_fill(seen(s.size(2), s.size(3), o).logical_not(), kHidden);
  const auto sees_none = s.detach().amax(-1, true).eq(kHidden);
  auto weights = at::softmax(s.masked_fill(sees_none, 0), -1).masked_fill(sees_none, 0);
  if (keep.defined()) weights = weights * keep;
  return at::matmul(weights, v);
}

/// Gradients with something that is different for each element.
inline std::vector<at::Tensor> gradients(const at::Tensor& out, const std::vector<at::Tensor>& of) {
  const auto g = torch::linspace(-1, 1, out.numel(), torch::kDouble).cos().reshape(out.sizes());
  return torch::autograd::grad({out}, of, {g.to(out.scalar_type())});
}

inline double error_of(const at::Tensor& got, const at::Tensor& want) {
  const double size = want.norm().item<double>();
  return (got.to(torch::kDouble) - want).norm().item<double>() / (size > 0 ? size : 1);
}

/// A level of forward mode until the end of the scope.
struct ForwardLevel {
  const std::uint64_t number = torch::autograd::ForwardADLevel::get_next_idx();
  ForwardLevel() = default;
  ForwardLevel(const ForwardLevel&) = delete;
  ForwardLevel& operator=(const ForwardLevel&) = delete;
  ~ForwardLevel() { torch::autograd::ForwardADLevel::release_idx(number); }

  at::Tensor dual(const at::Tensor& of, const at::Tensor& tangent) const {
    return at::_make_dual(of, tangent, static_cast<std::int64_t>(number));
  }
  at::Tensor tangent_of(const at::Tensor& dual) const {
    return std::get<1>(at::_unpack_dual(dual, static_cast<std::int64_t>(number)));
  }
};

/// The environment's DEMI_ATTENTION until the end of the scope.
class Forced {
 public:
  explicit Forced(const char* path) { setenv("DEMI_ATTENTION", path, 1); }
  ~Forced() { unsetenv("DEMI_ATTENTION"); }
  Forced(const Forced&) = delete;
  Forced& operator=(const Forced&) = delete;
};

}  // namespace demi::sdpa
