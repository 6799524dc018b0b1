#include "demi/step/matrices.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "demi/core/bf16_products.h"
#include "demi/core/instruction_set.h"
#include "demi/products/matrix_product.h"

namespace demi::optim {
namespace {

using Triple = std::tuple<double, double, double>;

/// Amsel et al. 2025, "The Polar Express" (arXiv 2505.16932), with the safety factor of 1.02, in
/// the order of the steps. Later steps use the last.
constexpr std::array<Triple, 5> kPolarExpress{
    Triple{8.156554524902461, -22.48329292557795, 15.878769915207462},
    Triple{4.042929935166739, -2.808917465908714, 0.5000178451051316},
    Triple{3.8916678022926607, -2.772484153217685, 0.5060648178503393},
    Triple{3.285753657755655, -2.3681294933425376, 0.46449024233003106},
    Triple{2.3465413258596377, -1.7097828382687081, 0.42323551169305323}};

Triple coefficients_of(const MatrixOptions& options, std::int64_t step) {
  if (!options.polar_express) return options.coefficients;
  return kPolarExpress[static_cast<std::size_t>(std::min<std::int64_t>(step, 4))];
}

double adjusted(AdjustLr adjust, double rows, double columns) {
  switch (adjust) {
    case AdjustLr::original:
      return std::sqrt(std::max(1.0, rows / columns));
    case AdjustLr::match_rms_adamw:
      return 0.2 * std::sqrt(std::max(rows, columns));
    case AdjustLr::spectral_unclamped:
      return std::sqrt(rows / columns);
    case AdjustLr::none:
      break;
  }
  return 1;
}

double factor_of(const Sides& matrix, at::IntArrayRef sizes, const MatrixOptions& options) {
  if (matrix.rows == 0 || matrix.columns == 0) return 1;
  const auto side = [](std::int64_t size) { return static_cast<double>(size); };
  if (options.kernel_sides)
    return adjusted(options.adjust_lr, side(sizes[sizes.size() - 2]), side(sizes.back()));
  return adjusted(options.adjust_lr, side(matrix.rows), side(matrix.columns));
}

/// The norm of each matrix, (..., 1, 1). On a CPU the calling thread adds up alone: the order of a
/// sum by several threads would depend on their number.
at::Tensor norms_of(const at::Tensor& x) {
  const auto norm = [&] {
    return x.dim() == 2 ? x.norm() : at::linalg_vector_norm(x, 2, at::IntArrayRef{-2, -1}, true);
  };
  if (!x.is_cpu()) return norm();
  at::Tensor made;
  at::parallel_for(0, 2, 1, [&](std::int64_t begin, std::int64_t) {
    if (begin == 0) made = norm();
  });
  return made;
}

/// beta sum + alpha a b; without a sum alpha is 1. Products in FP32 are demi's on a CPU: the bits
/// of LibTorch's depend on the number of threads. Those in bf16 are LibTorch's, as
/// torch.optim.Muon's are.
at::Tensor product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, double beta,
                   double alpha, bool is_symmetric = false) {
  if (a.scalar_type() == at::kFloat)
    return (is_symmetric ? products::symmetric_product : products::matrix_product)(sum, a, b, beta,
                                                                                   alpha);
  const bool is_batch = a.dim() == 3;
  if (!sum.defined()) return is_batch ? at::bmm(a, b) : at::mm(a, b);
  return is_batch ? at::baddbmm(sum, a, b, beta, alpha) : at::addmm(sum, a, b, beta, alpha);
}

/// The orthogonal factor of each of x, (rows, columns) or (count, rows, columns), whose memory it
/// may use.
at::Tensor orthogonal_factor(at::Tensor x, const MatrixOptions& options) {
  const bool is_tall = x.size(-2) > x.size(-1);
  if (is_tall) x = x.mT();
  if (options.polar_express)
    x.div_(norms_of(x).mul_(1.02).add_(1e-6));
  else
    x.div_(at::clamp(norms_of(x), options.epsilon));
  for (std::int64_t step = 0; step < options.steps; ++step) {
    const auto [a, b, c] = coefficients_of(options, step);
    const at::Tensor gram = product({}, x, x.mT(), 1, 1, /*is_symmetric=*/true);
    const at::Tensor polynomial = product(gram, gram, gram, b, c, /*is_symmetric=*/true);
    x = product(x, polynomial, x, a, 1);
  }
  return is_tall ? x.mT() : x;
}

/// Orthogonalises rows [first, first + rows) of `all`, (..., rows, columns), in place.
void orthogonalise_rows(const at::Tensor& all, std::int64_t first, std::int64_t rows, double scale,
                        const MatrixOptions& options) {
  const at::Tensor part = all.narrow(-2, first, rows);
  at::Tensor x = orthogonal_factor(part.is_contiguous() ? part : part.clone(), options);
  if (scale != 1) x = x * scale;
  part.copy_(x);
}

bool are_equal(const std::vector<Sides>& matrices) {
  return std::ranges::all_of(matrices,
                             [&](const Sides& one) { return one.rows == matrices.front().rows; });
}

/// `all`: (rows, columns), or (count, rows, columns).
void orthogonalise_matrices(const at::Tensor& all, at::IntArrayRef sizes,
                            const MatrixOptions& options) {
  const std::vector<Sides> matrices = matrices_of(sizes, options);
  if (options.batched && matrices.size() > 1 && are_equal(matrices)) {
    const auto [rows, columns] = matrices.front();
    at::Tensor x = all.reshape({-1, rows, columns}).clone();
    x = orthogonal_factor(x, options);
    all.copy_(x.reshape(all.sizes()));
    return;
  }
  const double greatest = rate_factor_of(sizes, options);
  std::int64_t first = 0;
  for (const Sides& one : matrices) {
    const double factor = factor_of(one, sizes, options);
    orthogonalise_rows(all, first, one.rows, factor == greatest ? 1 : factor / greatest, options);
    first += one.rows;
  }
}

}  // namespace

std::vector<Sides> matrices_of(at::IntArrayRef sizes, const MatrixOptions& options) {
  const std::int64_t columns = c10::multiply_integers(sizes.slice(1));
  if (options.split_rows.empty()) return {{sizes[0], columns}};
  std::vector<Sides> all;
  for (const std::int64_t rows : options.split_rows) all.push_back({rows, columns});
  return all;
}

double rate_factor_of(at::IntArrayRef sizes, const MatrixOptions& options) {
  double greatest = 0;
  for (const Sides& one : matrices_of(sizes, options))
    greatest = std::max(greatest, factor_of(one, sizes, options));
  return greatest;
}

c10::ScalarType product_dtype(const at::Tensor& work, const MatrixOptions& options) {
  if (work.scalar_type() == at::kDouble) return at::kDouble;
  if (options.products == MatrixProducts::fp32) return at::kFloat;
  if (options.products == MatrixProducts::bf16 || !work.is_cpu()) return at::kBFloat16;
  const bool is_faster = has_bf16_hardware() && bf16_products() == Bf16Products::bf16;
  return is_faster ? at::kBFloat16 : at::kFloat;
}

double multiplications_of(at::IntArrayRef sizes, const MatrixOptions& options) {
  double sum = 0;
  for (const auto& [rows, columns] : matrices_of(sizes, options)) {
    const auto m = static_cast<double>(std::min(rows, columns));
    const auto n = static_cast<double>(std::max(rows, columns));
    sum += m * m * (2 * n + m);
  }
  return sum;
}

void orthogonalise(const Directions& directions, const at::Tensor& work,
                   const MatrixOptions& options) {
  if (work.numel() == 0) return;
  // A program may step in a region, whose kernels would choose the dtype.
  const c10::impl::ExcludeDispatchKeyGuard outside_regions(c10::autocast_dispatch_keyset);
  const std::int64_t rows = work.size(0), columns = work.numel() / rows;
  const auto view = [&](at::IntArrayRef sizes, at::IntArrayRef strides) {
    if (directions.count == 1) return directions.memory.as_strided(sizes, strides);
    c10::DimVector all_sizes{directions.count}, all_strides{directions.stride};
    all_sizes.append(sizes.begin(), sizes.end());
    all_strides.append(strides.begin(), strides.end());
    return directions.memory.as_strided(all_sizes, all_strides);
  };
  if (work.dim() == 2)
    return orthogonalise_matrices(view(work.sizes(), work.strides()), work.sizes(), options);
  if (rows == 1 || work.stride(0) == columns)
    return orthogonalise_matrices(view({rows, columns}, {columns, 1}), work.sizes(), options);
  // The rows do not lie one after the other.
  const at::Tensor all = view(work.sizes(), work.strides());
  c10::DimVector sizes(all.sizes().begin(), all.sizes().end() - work.dim());
  sizes.append({rows, columns});
  const at::Tensor x = all.reshape(sizes).clone();
  orthogonalise_matrices(x, work.sizes(), options);
  all.copy_(x.reshape(all.sizes()));
}

}  // namespace demi::optim
