#include "demi/attention/blocks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "demi/attention/dropout_mask.h"

// With S = scale q k^T + mask, P = softmax(S), D the mask of dropout (Dao et al., FlashAttention,
// 2022, appendix B.4):
//   o = (P D) v        dv = (P D)^T do        dP = (do v^T) D
//   dS = P (dP - sum_j P dP)        dq = scale dS k        dk = scale dS^T q
namespace demi::sdpa {
namespace {

// Weights held at a time: 1 MiB of FP32, which a level 2 cache holds about. More queries than this
// in a product gain nothing, and waste more of a causal mask's diagonal.
constexpr std::int64_t kWeights = 1 << 18, kQueries = 128;

/// Some rows of the batch, or some key heads of one row, with the query heads that read them.
struct Heads {
  std::int64_t row, rows, key_head, key_heads;
};

struct Queries {
  std::int64_t first, count;
  std::int64_t keys;  // that any of them sees: 0 to keys - 1
};

class Attention {
 public:
  Attention(const Problem& of, c10::ScalarType products)
      : of_(of),
        products_(products),
        sums_(products == at::kDouble ? at::kDouble : at::kFloat),
        group_(of.heads_per_key()) {}

  void forward(const at::Tensor& out) {
    each_heads([&](const Heads& heads) {
      take(heads);
      each_queries(heads, [&](const Queries& some) {
        const at::Tensor to = part(out, some);
        at::Tensor weights = dropped(weights_of(some), some);
        to.copy_(at::bmm(weights.to(products_), keys_seen(v_, some)).view_as(to));
      });
    });
  }

  void backward(const at::Tensor& of_out, Gradients& to) {
    each_heads([&](const Heads& heads) {
      take(heads);
      const auto zeros = [&](const at::Tensor& like) {
        return at::zeros(like.sizes(), like.options().dtype(sums_));
      };
      at::Tensor of_k = zeros(k_), of_v = zeros(v_);
      each_queries(heads, [&](const Queries& some) { backward_of(some, of_out, to, of_k, of_v); });
      const auto store = [&](const at::Tensor& gradient, const at::Tensor& from) {
        if (!gradient.defined()) return;
        const at::Tensor place = keys_of(gradient);
        place.copy_(from.view_as(place));
      };
      store(to.k, of_k);
      store(to.v, of_v);
    });
  }

 private:
  void backward_of(const Queries& some, const at::Tensor& of_out, Gradients& to, at::Tensor& of_k,
                   at::Tensor& of_v) {
    const at::Tensor q = operand(of_.q, some, scales_q()), g = operand(of_out, some, false);
    const at::Tensor weights = softmax_of(products_of(q, some), some), keep = dropout_of(some);
    if (to.v.defined()) {
      const at::Tensor used = keep.defined() ? weights * keep : weights;
      add(of_v, used.to(products_).transpose(1, 2), g, some);
    }
    if (!to.q.defined() && !to.k.defined() && !to.mask.defined()) return;
    at::Tensor of_weights = at::bmm(g, keys_seen(v_, some).transpose(1, 2)).to(sums_);
    if (keep.defined()) of_weights.mul_(keep);
    at::Tensor of_sums = at::_softmax_backward_data(of_weights, weights, -1, sums_);
    if (to.mask.defined()) add_to_mask(to.mask, in_heads(of_sums, some), some);
    if (!scales_q()) of_sums.mul_(of_.scale);
    const at::Tensor s = of_sums.to(products_);
    if (to.k.defined()) add(of_k, s.transpose(1, 2), q, some);
    if (!to.q.defined()) return;
    at::Tensor of_q = at::bmm(s, keys_seen(k_, some));
    if (scales_q()) of_q.mul_(of_.scale);
    const at::Tensor place = part(to.q, some);
    place.copy_(of_q.view_as(place));
  }

  /// FP32 and FP64: q is scaled. 16 bits: rounding q again would lose digits, so the sums are.
  bool scales_q() const { return products_ == sums_; }

  template <class Work>
  void each_heads(Work work) const {
    const std::int64_t rows = of_.q.size(0), key_heads = of_.k.size(1);
    const std::int64_t queries = std::min(of_.queries(), kQueries);
    const std::int64_t at_once = std::max<std::int64_t>(
        1, kWeights / std::max<std::int64_t>(1, group_ * queries * of_.keys()));
    if (at_once >= key_heads) {
      const std::int64_t step = at_once / key_heads;
      for (std::int64_t n = 0; n < rows; n += step)
        work(Heads{n, std::min(step, rows - n), 0, key_heads});
      return;
    }
    for (std::int64_t n = 0; n < rows; ++n)
      for (std::int64_t h = 0; h < key_heads; h += at_once)
        work(Heads{n, 1, h, std::min(at_once, key_heads - h)});
  }

  template <class Work>
  void each_queries(const Heads& heads, Work work) const {
    const std::int64_t all = of_.queries(), keys = of_.keys();
    const std::int64_t a_query = heads.rows * heads.key_heads * group_ * keys;
    const std::int64_t step =
        std::clamp<std::int64_t>(kWeights / std::max<std::int64_t>(a_query, 1), 1, kQueries);
    for (std::int64_t first = 0; first < all; first += step) {
      const std::int64_t count = std::min(step, all - first);
      const std::int64_t seen = of_.causal ? std::min(keys, first + count + of_.past) : keys;
      work(Queries{first, count, seen});
    }
  }

  void take(const Heads& heads) {
    heads_ = heads;
    const auto taken = [&](const at::Tensor& tensor) {
      const at::Tensor some = keys_of(tensor);
      return some.to(products_).reshape({-1, some.size(2), some.size(3)});
    };
    k_ = taken(of_.k);
    v_ = taken(of_.v);
  }

  at::Tensor keys_of(const at::Tensor& tensor) const {  // (n, g, S, E)
    return tensor.narrow(0, heads_.row, heads_.rows).narrow(1, heads_.key_head, heads_.key_heads);
  }

  at::Tensor part(const at::Tensor& tensor, const Queries& some) const {  // (n, h, queries, E)
    return tensor.narrow(0, heads_.row, heads_.rows)
        .narrow(1, heads_.key_head * group_, heads_.key_heads * group_)
        .narrow(2, some.first, some.count);
  }

  /// (n g, H / G queries, E): the query heads that read one key head lie below each other.
  at::Tensor operand(const at::Tensor& tensor, const Queries& some, bool scale) const {
    at::Tensor result =
        part(tensor, some)
            .to(products_)
            .reshape({heads_.rows * heads_.key_heads, group_ * some.count, tensor.size(3)});
    return scale ? result * of_.scale : result;
  }

  static at::Tensor keys_seen(const at::Tensor& tensor, const Queries& some) {
    return tensor.narrow(1, 0, some.keys);
  }

  at::Tensor in_heads(const at::Tensor& block,
                      const Queries& some) const {  // (n, h, queries, keys)
    return block.view({heads_.rows, heads_.key_heads * group_, some.count, some.keys});
  }

  at::Tensor products_of(const at::Tensor& q, const Queries& some) const {
    at::Tensor s = at::bmm(q, keys_seen(k_, some).transpose(1, 2)).to(sums_);
    return scales_q() ? s : s.mul_(of_.scale);
  }

  at::Tensor weights_of(const Queries& some) const {
    return softmax_of(products_of(operand(of_.q, some, scales_q()), some), some);
  }

  at::Tensor softmax_of(const at::Tensor& s, const Queries& some) const {
    constexpr double kHidden = -std::numeric_limits<double>::infinity();
    const at::Tensor by_head = in_heads(s, some);
    if (of_.mask.defined()) {
      const at::Tensor mask = mask_part(of_.mask, some);
      if (mask.scalar_type() == at::kBool)
        by_head.masked_fill_(mask.logical_not(), kHidden);
      else
        by_head.add_(mask.to(sums_));
    }
    const std::int64_t all_see = some.first + of_.past + 1, behind = some.keys - all_see;
    if (of_.causal && behind > 0)
      by_head.narrow(3, all_see, behind)
          .masked_fill_(at::ones({some.count, behind}, at::kBool).triu_(), kHidden);
    at::Tensor weights = at::_softmax(s, -1, false);
    if (of_.mask.defined()) weights.masked_fill_(s.amax(-1, true).eq(kHidden), 0);
    return weights;
  }

  /// The part of a mask for these queries. A dimension of size 1 is broadcast, and stays.
  at::Tensor mask_part(const at::Tensor& mask, const Queries& some) const {
    const auto some_of = [](const at::Tensor& t, std::int64_t dim, std::int64_t first,
                            std::int64_t count) {
      return t.size(dim) == 1 ? t : t.narrow(dim, first, count);
    };
    at::Tensor result = some_of(mask, 0, heads_.row, heads_.rows);
    result = some_of(result, 1, heads_.key_head * group_, heads_.key_heads * group_);
    result = some_of(result, 2, some.first, some.count);
    return some_of(result, 3, 0, some.keys);
  }

  void add_to_mask(const at::Tensor& to, const at::Tensor& gradient, const Queries& some) const {
    at::Tensor place = mask_part(to, some);
    place.add_(at::sum_to(gradient, place.sizes()));
  }

  at::Tensor dropout_of(const Queries& some) const {
    if (of_.dropout.p == 0) return {};
    const std::int64_t heads = heads_.key_heads * group_;
    return dropout_mask({heads_.rows, heads, some.count, some.keys}, sums_, of_.dropout,
                        {heads_.row, heads_.key_head * group_, some.first, of_.q.size(1)})
        .view({-1, group_ * some.count, some.keys});
  }

  at::Tensor dropped(at::Tensor weights, const Queries& some) const {
    const at::Tensor keep = dropout_of(some);
    return keep.defined() ? weights.mul_(keep) : weights;
  }

  void add(at::Tensor& to, const at::Tensor& a, const at::Tensor& b, const Queries& some) const {
    if (products_ == sums_ && some.keys == to.size(1))
      to.baddbmm_(a, b);
    else
      to.narrow(1, 0, some.keys).add_(at::bmm(a, b));
  }

  const Problem& of_;
  const c10::ScalarType products_, sums_;
  const std::int64_t group_;
  Heads heads_{};
  at::Tensor k_, v_;  // of heads_: (n g, S, E), (n g, S, F)
};

}  // namespace

void forward_by_blocks(const Problem& problem, c10::ScalarType products, const at::Tensor& out) {
  Attention(problem, products).forward(out);
}

void backward_by_blocks(const Problem& problem, c10::ScalarType products, const at::Tensor& of_out,
                        Gradients& gradients) {
  Attention(problem, products).backward(of_out, gradients);
}

}  // namespace demi::sdpa
