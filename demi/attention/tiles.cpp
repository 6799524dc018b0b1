#include "demi/attention/tiles.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

#include "demi/attention/mask.h"
#include "demi/kernels/attention.h"
#include "demi/products/block_product.h"

// With S = q k^T, P = exp(scale S - log sum exp), O = P v:
//   forward    rows are queries, so that softmax runs along them
//   backward   S^T = k q^T, dP^T = v dO^T, dS^T = scale P^T (dP^T - rowsum(dO O))
//              dv = P^T dO, dk = dS^T q, dq^T = k^T dS^T
// so that each left operand is used as it was made, and each right one is packed when it is made.
namespace demi::sdpa {
namespace {

using std::int64_t, std::uint16_t;

// Keys are padded to whole panels, queries to half ones or a tile's rows, so that lengths share
// kernels.
constexpr int64_t kPanel = 64, kHalfPanel = 32, kTile = 16;
// Queries and keys of a tile, and the most sums: sums in FP32 and weights in bf16 fit a level 2
// cache.
constexpr int64_t kQueriesAtOnce = 128, kKeys = 256, kSums = 128 * 1024;

int64_t padded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/// (rows, columns) of one head, the last dimension dense.
struct Matrix {
  uint16_t* data = nullptr;
  int64_t rows = 0, columns = 0, stride = 0;

  Matrix rows_from(int64_t first, int64_t count) const {
    return {data + first * stride, count, columns, stride};
  }
};

/// Memory of one thread, made once and kept to its end.
template <class Number>
class Scratch {
 public:
  Number* of(int64_t elements) {
    if (elements > size_) {
      data_ = at::empty({elements * int64_t(sizeof(Number)) + 64}, at::kByte);
      size_ = elements;
    }
    const auto address = reinterpret_cast<std::uintptr_t>(data_.mutable_data_ptr());
    return reinterpret_cast<Number*>((address + 63) / 64 * 64);
  }

 private:
  at::Tensor data_;
  int64_t size_ = 0;
};

/// c (rows, columns) = or += a (rows, inner) b, where b is packed.
void multiply(float* c, int64_t c_stride, const uint16_t* a, int64_t a_stride, const uint16_t* b,
              int64_t b_rows, int64_t rows, int64_t inner, int64_t columns, bool add) {
  products::multiply(reinterpret_cast<const at::BFloat16*>(a), a_stride,
                     {reinterpret_cast<const at::BFloat16*>(b), b_rows, kPanel}, c, c_stride, rows,
                     inner, columns, add);
}

at::Tensor rows_dense(const at::Tensor& of) { return of.stride(3) == 1 ? of : of.contiguous(); }

/// The kernels that the first call found, also in backward if the environment has changed by then.
const kernels::AttentionKernels& chosen_kernels() {
  static const kernels::AttentionKernels& chosen = *kernels::attention_kernels();
  return chosen;
}

class Tiles {
 public:
  explicit Tiles(const Problem& of)
      : of_(of),
        q_(rows_dense(of.q)),
        k_(rows_dense(of.k)),
        v_(rows_dense(of.v)),
        queries_(of.queries()),
        keys_(of.keys()),
        size_(of.q.size(3)),
        value_size_(of.v.size(3)),
        padded_keys_(padded(keys_, kPanel)),
        padded_size_(padded(size_, kHalfPanel)),
        padded_value_size_(padded(value_size_, kHalfPanel)) {
    if (!of.mask.defined()) return;
    const at::Tensor mask = added_mask(of.mask, at::kFloat).contiguous();
    mask_ = mask.expand({of.q.size(0), of.q.size(1), queries_, keys_});
  }

  void forward(const Result& result) {
    each_key_head([&](int64_t n, int64_t g, Workspace& workspace) {
      const Matrix k = matrix(k_, n, g), v = matrix(v_, n, g);
      uint16_t* keys = workspace.keys.of(size_ * padded_keys_);
      kernels_.pack_transpose(keys, k.data, size_, keys_, k.stride, padded_keys_);
      uint16_t* values = workspace.values.of(padded_keys_ * padded_value_size_);
      kernels_.pack(values, v.data, keys_, value_size_, v.stride, padded_keys_, padded_value_size_);
      for (int64_t h = g * group(); h < (g + 1) * group(); ++h)
        forward_of(head(keys, values, result, n, h), workspace);
    });
  }

  void backward(const Result& result, const at::Tensor& of_out, const Gradients& to) {
    each_key_head([&](int64_t n, int64_t g, Workspace& workspace) {
      const Matrix k = matrix(k_, n, g), v = matrix(v_, n, g);
      uint16_t* keys = workspace.keys.of(padded_keys_ * size_);
      kernels_.copy(keys, k.data, keys_, size_, k.stride, padded_keys_);
      uint16_t* values = workspace.values.of(padded_keys_ * value_size_);
      kernels_.copy(values, v.data, keys_, value_size_, v.stride, padded_keys_);
      uint16_t* keys_transposed = workspace.keys_transposed.of(padded_keys_ * size_);
      kernels_.transpose(keys_transposed, k.data, keys_, size_, k.stride, padded_keys_);
      float* of_k = zeros(workspace.of_keys, padded_keys_ * padded_size_);
      float* of_v = zeros(workspace.of_values, padded_keys_ * padded_value_size_);
      for (int64_t h = g * group(); h < (g + 1) * group(); ++h)
        backward_of(head(keys, values, result, n, h),
                    {.keys_transposed = keys_transposed,
                     .of_k = of_k,
                     .of_v = of_v,
                     .of_out = matrix(of_out, n, h),
                     .of_q = to.q.defined() ? matrix(to.q, n, h) : Matrix{}},
                    workspace);
      const auto store = [&](const at::Tensor& gradient, const float* from, int64_t stride) {
        if (!gradient.defined()) return;
        const Matrix place = matrix(gradient, n, g);
        kernels_.divide(place.data, place.stride, from, stride, keys_, place.columns, nullptr);
      };
      store(to.k, of_k, padded_size_);
      store(to.v, of_v, padded_value_size_);
    });
  }

 private:
  struct Workspace {
    Scratch<uint16_t> keys, values, keys_transposed, queries, gradients, queries_packed,
        gradients_packed, gradients_transposed, weights, sums16, sums_packed;
    Scratch<float> sums, of_weights, result, rows, of_keys, of_values;
  };

  struct Head {
    const uint16_t *keys, *values;
    Matrix q, out;
    float* log_sum_exp;
    const float* mask;
  };

  struct HeadGradients {
    const uint16_t* keys_transposed;
    float *of_k, *of_v;
    Matrix of_out, of_q;
  };

  struct Queries {
    int64_t columns;
    uint16_t *transposed, *rows, *g_transposed, *g_rows;
    float *row_dot, *log_sum_exp;
    kernels::Visible visible;
  };

  struct Weights {
    uint16_t *weights, *of_sums, *packed_of_sums;
  };

  Head head(const uint16_t* keys, const uint16_t* values, const Result& result, int64_t n,
            int64_t h) const {
    return {.keys = keys,
            .values = values,
            .q = matrix(q_, n, h),
            .out = matrix(result.out, n, h),
            .log_sum_exp = row(result.log_sum_exp, n, h),
            .mask = mask(n, h)};
  }

  int64_t group() const { return of_.heads_per_key(); }

  template <class Work>
  void each_key_head(Work work) const {
    const int64_t heads = of_.k.size(1);
    at::parallel_for(0, of_.k.size(0) * heads, 1, [&](int64_t begin, int64_t end) {
      Workspace workspace;
      for (int64_t i = begin; i < end; ++i) work(i / heads, i % heads, workspace);
      products::release_block_products();
    });
  }

  static Matrix matrix(const at::Tensor& of, int64_t n, int64_t h) {
    auto* data = static_cast<uint16_t*>(of.data_ptr());
    return {data + n * of.stride(0) + h * of.stride(1), of.size(2), of.size(3), of.stride(2)};
  }

  static float* row(const at::Tensor& of, int64_t n, int64_t h) {
    return static_cast<float*>(of.data_ptr()) + n * of.stride(0) + h * of.stride(1);
  }

  const float* mask(int64_t n, int64_t h) const {
    return mask_.defined()
               ? mask_.const_data_ptr<float>() + n * mask_.stride(0) + h * mask_.stride(1)
               : nullptr;
  }

  static float* zeros(Scratch<float>& scratch, int64_t elements) {
    float* numbers = scratch.of(elements);
    std::fill_n(numbers, elements, 0.0f);
    return numbers;
  }

  kernels::Visible visible(int64_t first, int64_t queries, const float* mask) const {
    kernels::Visible result{.queries = queries,
                            .keys = keys_,
                            .seen = first + of_.past + 1,
                            .causal = of_.causal,
                            .mask = mask};
    if (mask) {
      result.mask_query_stride = mask_.stride(2);
      result.mask_key_stride = mask_.stride(3);
      result.mask += first * mask_.stride(2);
    }
    return result;
  }

  /// Keys that any of the queries before `end` sees, in whole panels.
  int64_t seen(int64_t end) const {
    return of_.causal ? padded(std::min(keys_, end + of_.past), kPanel) : padded_keys_;
  }

  void forward_of(const Head& head, Workspace& workspace) const {
    const int64_t step =
        std::clamp(kSums / padded_keys_ / kHalfPanel * kHalfPanel, kHalfPanel, kQueriesAtOnce);
    for (int64_t first = 0; first < queries_; first += step) {
      const int64_t count = std::min(step, queries_ - first), lines = padded(count, kTile),
                    all = seen(first + count);
      uint16_t* some = workspace.queries.of(lines * size_);
      kernels_.copy(some, head.q.data + first * head.q.stride, count, size_, head.q.stride, lines);
      float* sums = workspace.sums.of(lines * all);
      multiply(sums, all, some, size_, head.keys, size_, lines, size_, all, false);
      uint16_t* weights = workspace.weights.of(lines * all);
      float* total = workspace.rows.of(lines);
      kernels_.softmax(weights, total, head.log_sum_exp + first, sums, all, float(of_.scale),
                       visible(first, count, head.mask));
      float* result = workspace.result.of(lines * padded_value_size_);
      multiply(result, padded_value_size_, weights, all, head.values, padded_keys_, lines, all,
               padded_value_size_, false);
      kernels_.divide(head.out.data + first * head.out.stride, head.out.stride, result,
                      padded_value_size_, count, value_size_, total);
    }
  }

  /// Some queries with their gradients, as the products read them.
  Queries packed(const Head& head, const HeadGradients& to, int64_t first,
                 Workspace& workspace) const {
    const int64_t count = std::min(kQueriesAtOnce, queries_ - first),
                  columns = padded(count, kHalfPanel);
    const auto some = [&](const Matrix& of) { return of.rows_from(first, count); };
    const Matrix q = some(head.q), g = some(to.of_out), o = some(head.out);
    const Queries made{.columns = columns,
                       .transposed = workspace.queries_packed.of(size_ * columns),
                       .rows = workspace.queries.of(columns * padded_size_),
                       .g_transposed = workspace.gradients_transposed.of(value_size_ * columns),
                       .g_rows = workspace.gradients_packed.of(columns * padded_value_size_),
                       .row_dot = workspace.rows.of(2 * columns),
                       .log_sum_exp = workspace.rows.of(2 * columns) + columns,
                       .visible = visible(first, count, head.mask)};
    kernels_.pack_transpose(made.transposed, q.data, size_, count, q.stride, columns);
    kernels_.pack(made.rows, q.data, count, size_, q.stride, columns, padded_size_);
    kernels_.pack_transpose(made.g_transposed, g.data, value_size_, count, g.stride, columns);
    kernels_.pack(made.g_rows, g.data, count, value_size_, g.stride, columns, padded_value_size_);
    kernels_.dot_rows(made.row_dot, g.data, g.stride, o.data, o.stride, count, value_size_);
    std::copy_n(head.log_sum_exp + first, count, made.log_sum_exp);
    return made;
  }

  /// S^T and dP^T of some keys, and of these P^T, dS^T, and dS^T packed.
  Weights weights_of(const Head& head, const Queries& q, int64_t key, int64_t lines,
                     Workspace& workspace) const {
    const int64_t columns = q.columns, elements = lines * columns;
    float* sums = workspace.sums.of(elements);
    multiply(sums, columns, head.keys + key * size_, size_, q.transposed, size_, lines, size_,
             columns, false);
    float* of_weights = workspace.of_weights.of(elements);
    multiply(of_weights, columns, head.values + key * value_size_, value_size_, q.g_transposed,
             value_size_, lines, value_size_, columns, false);
    const Weights made{.weights = workspace.weights.of(elements),
                       .of_sums = workspace.sums16.of(elements),
                       .packed_of_sums = workspace.sums_packed.of(elements)};
    kernels_.gradients({.weights = made.weights,
                        .sums = made.of_sums,
                        .packed_sums = made.packed_of_sums,
                        .products = sums,
                        .of_weights = of_weights,
                        .log_sum_exp = q.log_sum_exp,
                        .row_dot = q.row_dot,
                        .first = key,
                        .padded_keys = lines,
                        .stride = columns,
                        .scale = float(of_.scale)},
                       q.visible);
    return made;
  }

  void backward_of(const Head& head, const HeadGradients& to, Workspace& workspace) const {
    for (int64_t first = 0; first < queries_; first += kQueriesAtOnce) {
      const int64_t count = std::min(kQueriesAtOnce, queries_ - first), all = seen(first + count);
      const Queries q = packed(head, to, first, workspace);
      const int64_t columns = q.columns;
      float* of_q = zeros(workspace.result, size_ * columns);
      for (int64_t key = 0; key < all; key += kKeys) {
        const int64_t lines = std::min(kKeys, all - key);
        const Weights w = weights_of(head, q, key, lines, workspace);
        multiply(to.of_v + key * padded_value_size_, padded_value_size_, w.weights, columns,
                 q.g_rows, columns, lines, columns, padded_value_size_, true);
        multiply(to.of_k + key * padded_size_, padded_size_, w.of_sums, columns, q.rows, columns,
                 lines, columns, padded_size_, true);
        multiply(of_q, columns, to.keys_transposed + key, padded_keys_, w.packed_of_sums, lines,
                 size_, lines, columns, true);
      }
      if (!to.of_q.data) continue;
      const Matrix place = to.of_q.rows_from(first, count);
      kernels_.store_transpose(place.data, place.stride, of_q, columns, count, size_);
    }
  }

  const Problem& of_;
  const at::Tensor q_, k_, v_;
  at::Tensor mask_;  // (N, H, T, S) FP32 of any strides, the last one 0 or 1; or undefined
  const int64_t queries_, keys_, size_, value_size_;
  const int64_t padded_keys_, padded_size_, padded_value_size_;
  const kernels::AttentionKernels& kernels_ = chosen_kernels();
};

}  // namespace

bool fits_tiles(const Problem& problem, bool differentiates_mask) {
  const std::int64_t size = problem.q.size(3), value_size = problem.v.size(3);
  return problem.q.scalar_type() == at::kBFloat16 && size % 2 == 0 && value_size % 2 == 0 &&
         problem.dropout.p == 0 && !differentiates_mask && products::multiplies_bf16_blocks() &&
         kernels::attention_kernels();
}

void forward_by_tiles(const Problem& problem, const Result& result) {
  Tiles(problem).forward(result);
}

void backward_by_tiles(const Problem& problem, const Result& result, const at::Tensor& of_out,
                       Gradients& gradients) {
  const auto place = [](const at::Tensor& of) { return of.defined() ? rows_dense(of) : of; };
  const Gradients to{place(gradients.q), place(gradients.k), place(gradients.v), {}};
  Tiles(problem).backward({rows_dense(result.out), result.log_sum_exp}, rows_dense(of_out), to);
  const auto store = [](const at::Tensor& gradient, const at::Tensor& from) {
    if (gradient.defined() && !gradient.is_same(from)) gradient.copy_(from);
  };
  store(gradients.q, to.q);
  store(gradients.k, to.k);
  store(gradients.v, to.v);
}

}  // namespace demi::sdpa
