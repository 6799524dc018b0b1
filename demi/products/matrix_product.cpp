#include "demi/products/matrix_product.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "demi/kernels/cpu_kernels.h"
#include "demi/products/convert.h"
#include "demi/products/no_autocast.h"
#include "demi/products/through_fp32.h"
#include "demi/tensor/dtype.h"
#include "demi/tensor/kept_results.h"

namespace demi::products {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A task's part of the result: so many columns of b in FP32 stay in a cache of the second level,
// and the sums of so many rows beside them in one of the third.
constexpr int64_t kMostRows = 1008, kMostColumns = 512;
// The least rows and columns of a task: whole tiles of each path (kernels/cpu/product.h).
constexpr int64_t kLeastRows = 84, kLeastColumns = 64;
// Products of so many pairs of numbers are one task.
constexpr int64_t kSmall = 1 << 18;
// Sums are split until there are so many tasks, into parts of at least so many numbers.
constexpr int64_t kTasks = 16, kLeastSum = 2048;

struct Scales {
  double beta, alpha;
};

int64_t ratio_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Part {
  int64_t first, size;
};

/// Part `index` of `parts` of [0, size), made of whole pieces of `piece`.
Part part_of(int64_t size, int64_t piece, int64_t parts, int64_t index) {
  const int64_t pieces = ratio_up(size, piece), first = pieces * index / parts * piece;
  return {first, std::min(size, pieces * (index + 1) / parts * piece) - first};
}

/// Into how many parts the rows and the columns of a result are split: as many tasks for each
/// thread. Changes no bit (kernels/product.h).
struct Split {
  int64_t rows, columns;

  Split(int64_t m, int64_t k, int64_t n, int64_t batch)
      : rows(ratio_up(m, kMostRows)), columns(ratio_up(n, kMostColumns)) {
    const int64_t threads = at::get_num_threads();
    if (m * k * n < kSmall || rows * columns * batch % threads == 0 || batch > 4 * threads) return;
    const int64_t most_rows = ratio_up(m, kLeastRows), most_columns = ratio_up(n, kLeastColumns);
    if (columns >= rows || most_rows < 2 * threads)
      columns = std::min(most_columns, ratio_up(columns, threads) * threads);
    else
      rows = std::min(most_rows, ratio_up(rows, threads) * threads);
  }
};

/// With rows or columns of numbers next to each other.
at::Tensor dense_one_way(const at::Tensor& matrices) {
  return matrices.stride(-1) == 1 || matrices.stride(-2) == 1 ? matrices : matrices.contiguous();
}

/// A matrix of a batch, or the only one.
struct Matrices {
  char* data = nullptr;
  int64_t size = 0, of_batch = 0, row = 0, column = 0;

  Matrices() = default;
  explicit Matrices(const at::Tensor& t)
      : data(static_cast<char*>(const_cast<void*>(t.const_data_ptr()))),
        size(t.element_size()),
        of_batch(t.dim() == 3 ? t.stride(0) : 0),
        row(t.stride(-2)),
        column(t.stride(-1)) {}
  char* at(int64_t matrix, int64_t i, int64_t j) const {
    return data + (matrix * of_batch + i * row + j * column) * size;
  }
};

/// out = beta addend + alpha a b, rounded to out's dtype, of matrices or batches of them whose rows
/// or columns are dense. out is contiguous; addend is undefined or of out's sizes in FP32.
void multiply(const at::Tensor& out, const at::Tensor& addend, const at::Tensor& left,
              const at::Tensor& right, const Scales& scales) {
  const Matrices a(left), b(right), c(out), plus = addend.defined() ? Matrices(addend) : Matrices();
  const int64_t m = out.size(-2), k = left.size(-1), n = out.size(-1),
                batch = out.dim() == 3 ? out.size(0) : 1;
  const Split split(m, k, n, batch);
  const auto run = kernels::cpu_kernels()->multiply;
  const int64_t parts = split.rows * split.columns;
  at::parallel_for(0, batch * parts, 1, [&](int64_t begin, int64_t end) {
    // Of the largest part.
    const int64_t tallest = ratio_up(ratio_up(m, kLeastRows), split.rows) * kLeastRows,
                  widest = ratio_up(ratio_up(n, kLeastColumns), split.columns) * kLeastColumns;
    const at::Tensor work =
        at::empty({kernels::work_size(std::min(m, tallest), k, std::min(n, widest))}, at::kFloat);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t matrix = task / parts, part = task % parts;
      const Part rows = part_of(m, kLeastRows, split.rows, part % split.rows),
                 columns = part_of(n, kLeastColumns, split.columns, part / split.rows);
      run({.storage = tensor::storage_of(left.scalar_type()),
           .result = tensor::storage_of(out.scalar_type()),
           .m = rows.size,
           .k = k,
           .n = columns.size,
           .a = a.at(matrix, rows.first, 0),
           .a_row = a.row,
           .a_column = a.column,
           .b = b.at(matrix, 0, columns.first),
           .b_row = b.row,
           .b_column = b.column,
           .c = c.at(matrix, rows.first, columns.first),
           .c_row = c.row,
           .addend = addend.defined() ? reinterpret_cast<const float*>(
                                            plus.at(matrix, rows.first, columns.first))
                                      : nullptr,
           .addend_row = plus.row,
           .addend_column = plus.column,
           .beta = static_cast<float>(scales.beta),
           .alpha = static_cast<float>(scales.alpha),
           .work = work.mutable_data_ptr<float>()});
    }
  });
}

/// Into how many parts the sums over a long k are split, so that a small result keeps many threads
/// busy. By the sizes alone: it changes the order of the sums.
int64_t parts_of_sums(int64_t m, int64_t k, int64_t n) {
  const int64_t tiles = ratio_up(m, kLeastRows) * ratio_up(n, kLeastColumns);
  return std::clamp(std::min(kTasks / tiles, k / kLeastSum), int64_t{1}, kTasks);
}

/// Multiplies as multiply() does, with sums over `parts` parts of k beside each other, in FP32.
void multiply_deep(const at::Tensor& out, const at::Tensor& addend, const at::Tensor& a,
                   const at::Tensor& b, const Scales& scales, int64_t parts) {
  const int64_t k = a.size(1), depth = k / parts / kernels::kChain * kernels::kChain,
                whole = parts * depth;
  const bool has_rest = whole < k;
  const at::Tensor sums =
      at::empty({parts + has_rest, out.size(0), out.size(1)}, out.options().dtype(at::kFloat));
  multiply(sums.narrow(0, 0, parts), {},
           a.narrow(1, 0, whole).unflatten(1, {parts, depth}).movedim(1, 0),
           b.narrow(0, 0, whole).unflatten(0, {parts, depth}), {1, 1});
  if (has_rest)
    multiply(sums[parts], {}, a.narrow(1, whole, k - whole), b.narrow(0, whole, k - whole), {1, 1});
  at::Tensor sum = sums[0];
  for (int64_t part = 1; part < sums.size(0); ++part) sum.add_(sums[part]);
  if (scales.alpha != 1) sum.mul_(scales.alpha);
  if (addend.defined()) sum.add_(addend, scales.beta);
  convert(out, sum);
}

at::Tensor computed(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b,
                    const Scales& scales) {
  const NoAutocast no_autocast;
  const at::AutoDispatchBelowADInplaceOrView below;
  RECORD_FUNCTION_WITH_SCOPE(at::RecordScope::USER_SCOPE, "demi.product",
                             std::vector<c10::IValue>({a, b}));
  auto sizes = a.sizes().vec();
  sizes.back() = b.size(-1);
  const at::Tensor out = at::empty(sizes, a.options());
  // With beta 0, as in LibTorch, nothing of the addend counts, NaN neither.
  const bool adds = addend.defined() && scales.beta != 0;
  // Converted before it is spread over the rows.
  const at::Tensor expanded = adds ? addend.to(at::kFloat).expand(sizes) : at::Tensor();
  const at::Tensor left = dense_one_way(a), right = dense_one_way(b);
  const int64_t parts = out.dim() == 2 ? parts_of_sums(out.size(0), left.size(1), out.size(1)) : 1;
  if (parts > 1)
    multiply_deep(out, expanded, left, right, scales, parts);
  else
    multiply(out, expanded, left, right, scales);
  return out;
}

/// Keeps the product of two matrices (tensor::kept). Products of a batch are often attention's,
/// which are not kept.
at::Tensor multiplied(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b,
                      const Scales& scales) {
  const auto compute = [&] { return computed(addend, a, b, scales); };
  return a.dim() == 2 ? tensor::kept("demi::products::matrix_product", compute) : compute();
}

/// alpha a b in the order of memory of `like`, as a gradient is wanted: where its columns are
/// dense, that is the transposed product.
at::Tensor product_like(const at::Tensor& like, const at::Tensor& a, const at::Tensor& b,
                        double alpha) {
  const auto t = [](const at::Tensor& matrix) { return matrix.transpose(-1, -2); };
  if (like.stride(-2) == 1 && like.stride(-1) != 1)
    return t(matrix_product({}, t(b), t(a), 1, alpha));
  return matrix_product({}, a, b, 1, alpha);
}

// An absent addend has no edge of its own, so it comes last.
struct ProductFunction : torch::autograd::Function<ProductFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& a, const at::Tensor& b,
                            const std::optional<at::Tensor>& addend, double beta, double alpha) {
    context->save_for_backward({a, b});
    context->saved_data["beta"] = beta;
    context->saved_data["alpha"] = alpha;
    if (addend) context->saved_data["addend"] = addend->sizes();
    return multiplied(addend.value_or(at::Tensor()), a, b, {beta, alpha});
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const NoAutocast no_autocast;
    const auto saved = context->get_saved_variables();
    const at::Tensor &a = saved[0], &b = saved[1], &gradient = gradients[0];
    const double alpha = context->saved_data["alpha"].toDouble(),
                 beta = context->saved_data["beta"].toDouble();
    variable_list result(5);
    if (!gradient.defined()) return result;
    const auto addend = context->saved_data.find("addend");
    if (addend != context->saved_data.end() && context->needs_input_grad(2)) {
      const at::Tensor scaled = beta == 1 ? gradient : gradient * beta;
      result[2] = at::sum_to(scaled, addend->second.toIntVector());
    }
    if (context->needs_input_grad(0))
      result[0] = product_like(a, gradient, b.transpose(-1, -2), alpha);
    if (context->needs_input_grad(1))
      result[1] = product_like(b, a.transpose(-1, -2), gradient, alpha);
    return result;
  }
};

/// Whether the kernels multiply these tensors: of 16 bits if that is faster than LibTorch.
bool is_own(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != at::kFloat) return takes({&addend, &a, &b});
  return kernels::cpu_kernels() && is_ordinary({&addend, &a, &b});
}

/// LibTorch's product, for example in backward with a batch of gradients (vmap).
at::Tensor libtorchs(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b,
                     double beta, double alpha) {
  const bool is_batch = a.dim() == 3;
  if (addend.defined())
    return is_batch ? at::baddbmm(addend, a, b, beta, alpha) : at::addmm(addend, a, b, beta, alpha);
  const at::Tensor product = is_batch ? at::bmm(a, b) : at::mm(a, b);
  return alpha == 1 ? product : product * alpha;
}

}  // namespace

at::Tensor matrix_product(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b,
                          double beta, double alpha) {
  if (!is_own(addend, a, b)) return libtorchs(addend, a, b, beta, alpha);
  const bool differentiates =
      at::GradMode::is_enabled() &&
      (a.requires_grad() || b.requires_grad() || (addend.defined() && addend.requires_grad()));
  if (!differentiates) return multiplied(addend, a, b, {beta, alpha});
  return ProductFunction::apply(a, b, addend.defined() ? std::optional(addend) : std::nullopt, beta,
                                alpha);
}

}  // namespace demi::products
