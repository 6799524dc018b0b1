#include "demi/quantization/hadamard.h"

#include <ATen/Parallel.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "demi/quantization/hadamard_rounds.h"
#include "demi/quantization/require.h"
#include "demi/tensor/parallel.h"

namespace demi::quantization {
namespace {

/// FP32 numbers of as many groups.
constexpr int kGroups = 16;
typedef float GroupNumbers __attribute__((vector_size(kGroups * sizeof(float))));

/// Of `count` groups. Neighbours of a group and groups are so many elements apart.
template <class T>
inline __attribute__((always_inline)) void transform_groups(const T* from, T* to, int count,
                                                            std::int64_t neighbour,
                                                            std::int64_t group) {
  GroupNumbers x[kHadamard] = {};
  for (int k = 0; k < kHadamard; ++k)
    for (int i = 0; i < count; ++i) x[k][i] = static_cast<float>(from[k * neighbour + i * group]);
  hadamard_rounds(x);
  for (int k = 0; k < kHadamard; ++k)
    for (int i = 0; i < count; ++i) to[k * neighbour + i * group] = static_cast<T>(x[k][i]);
}

template <class T>
void transform_along(const T* from, T* to, std::int64_t groups) {
  at::parallel_for(0, groups, tensor::kElementsPerThread / kHadamard,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; i += kGroups) {
                       const std::int64_t at = i * kHadamard, left = end - i;
                       if (left >= kGroups)
                         transform_groups(from + at, to + at, kGroups, 1, kHadamard);
                       else
                         transform_groups(from + at, to + at, static_cast<int>(left), 1, kHadamard);
                     }
                   });
}

template <class T>
void transform_down(const T* from, T* to, std::int64_t groups, std::int64_t columns) {
  const std::int64_t size = kHadamard * columns;
  const std::int64_t grain = std::max<std::int64_t>(1, tensor::kElementsPerThread / size);
  at::parallel_for(0, groups, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      for (std::int64_t column = 0; column < columns; column += kGroups) {
        const std::int64_t at = i * size + column, left = columns - column;
        if (left >= kGroups)
          transform_groups(from + at, to + at, kGroups, columns, 1);
        else
          transform_groups(from + at, to + at, static_cast<int>(left), columns, 1);
      }
  });
}

template <class T>
void transform_matrix(const at::Tensor& from, const at::Tensor& to, bool down) {
  const T* read = from.const_data_ptr<T>();
  T* write = to.mutable_data_ptr<T>();
  down ? transform_down(read, write, from.size(0) / kHadamard, from.size(1))
       : transform_along(read, write, from.numel() / kHadamard);
}

/// The values as a matrix whose transformed length is a multiple of 16.
at::Tensor filled_up_matrix(const at::Tensor& values, bool down) {
  const std::int64_t columns = values.size(-1);
  std::int64_t rows = 1;
  for (std::int64_t i = 0; i + 1 < values.dim(); ++i) rows *= values.size(i);
  const at::Tensor matrix = values.detach().reshape({rows, columns});
  const std::int64_t length = down ? rows : columns;
  const std::int64_t missing = (kHadamard - length % kHadamard) % kHadamard;
  if (missing == 0) return matrix.contiguous();
  return at::constant_pad_nd(
      matrix,
      down ? std::vector<std::int64_t>{0, 0, 0, missing} : std::vector<std::int64_t>{0, missing},
      0);
}

}  // namespace

at::Tensor hadamard_by_ops(const at::Tensor& matrix, bool down) {
  const std::int64_t lanes = down ? matrix.size(1) : 1;
  const std::vector<at::Tensor> parts = matrix.view({-1, kHadamard, lanes}).unbind(1);
  at::Tensor x[kHadamard];
  std::copy(parts.begin(), parts.end(), x);
  hadamard_rounds(x);
  return at::stack(x, 1).view(matrix.sizes());
}

at::Tensor hadamard(const at::Tensor& values, bool down) {
  require_dtype("quantization.hadamard", values.scalar_type());
  require_dimensions("quantization.hadamard", values);
  const at::Tensor from = filled_up_matrix(values, down);
  if (from.numel() == 0) return at::empty_like(from);
  if (!from.is_cpu()) return hadamard_by_ops(from.to(at::kFloat), down).to(from.scalar_type());
  const at::Tensor to = at::empty_like(from);
  switch (from.scalar_type()) {
    case at::kBFloat16:
      transform_matrix<c10::BFloat16>(from, to, down);
      break;
    case at::kHalf:
      transform_matrix<c10::Half>(from, to, down);
      break;
    default:
      transform_matrix<float>(from, to, down);
  }
  return to;
}

}  // namespace demi::quantization
