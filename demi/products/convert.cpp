#include "demi/products/convert.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "demi/kernels/cpu_kernels.h"
#include "demi/tensor/dtype.h"

namespace demi::products {
namespace {

constexpr int64_t kElementsPerThread = 1 << 15;

bool dense_columns(const at::Tensor& matrix) { return matrix.stride(0) == 1; }
bool dense_rows(const at::Tensor& matrix) { return matrix.stride(1) == 1; }

bool dense_in_one_order(const at::Tensor& a, const at::Tensor& b) {
  return a.is_non_overlapping_and_dense() && a.strides() == b.strides();
}

void convert_run(const kernels::CpuKernels& k, const at::Tensor& to, const at::Tensor& from) {
  const bool widens = to.scalar_type() == at::kFloat;
  const int64_t to_size = to.element_size(), from_size = from.element_size();
  auto* target = static_cast<char*>(to.mutable_data_ptr());
  const auto* source = static_cast<const char*>(from.const_data_ptr());
  at::parallel_for(0, to.numel(), kElementsPerThread, [&](int64_t begin, int64_t end) {
    void* there = target + begin * to_size;
    const void* here = source + begin * from_size;
    if (widens)
      k.widen(static_cast<float*>(there), here, tensor::storage_of(from.scalar_type()),
              end - begin);
    else
      k.narrow(there, tensor::storage_of(to.scalar_type()), static_cast<const float*>(here),
               end - begin);
  });
}

void convert_rows(const kernels::CpuKernels& k, const at::Tensor& to, const at::Tensor& from) {
  const int64_t rows = to.size(0), columns = to.size(1);
  const bool widens = to.scalar_type() == at::kFloat;
  const int64_t to_step = to.stride(0) * to.element_size(),
                from_step = from.stride(0) * from.element_size();
  auto* target = static_cast<char*>(to.mutable_data_ptr());
  const auto* source = static_cast<const char*>(from.const_data_ptr());
  at::parallel_for(0, rows, std::max<int64_t>(1, kElementsPerThread / columns),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t row = begin; row < end; ++row) {
                       void* there = target + row * to_step;
                       const void* here = source + row * from_step;
                       if (widens)
                         k.widen(static_cast<float*>(there), here,
                                 tensor::storage_of(from.scalar_type()), columns);
                       else
                         k.narrow(there, tensor::storage_of(to.scalar_type()),
                                  static_cast<const float*>(here), columns);
                     }
                   });
}

}  // namespace

at::Tensor fp32_like(const at::Tensor& like) {
  const auto options = like.options().dtype(at::kFloat);
  if (like.dim() != 2)
    return like.is_non_overlapping_and_dense()
               ? at::empty_strided(like.sizes(), like.strides(), options)
               : at::empty(like.sizes(), options);
  if (dense_columns(like) && !dense_rows(like))
    return at::empty({like.size(1), like.size(0)}, options).t();
  return at::empty(like.sizes(), options);
}

void convert(const at::Tensor& to, const at::Tensor& from) {
  const kernels::CpuKernels* k = kernels::cpu_kernels();
  if (k && dense_in_one_order(to, from))
    convert_run(*k, to, from);
  else if (!k || to.dim() != 2)
    to.copy_(from);
  else if (dense_rows(to) && dense_rows(from))
    convert_rows(*k, to, from);
  else if (dense_columns(to) && dense_columns(from))
    convert_rows(*k, to.t(), from.t());
  else
    to.copy_(from);
}

const at::Tensor& Widened::operator()(const at::Tensor& piece) {
  const auto fits = [&] {
    return held_.defined() && held_.sizes() == piece.sizes() &&
           (piece.dim() == 2 || held_.strides() == piece.strides());
  };
  if (!fits()) held_ = fp32_like(piece);
  convert(held_, piece);
  return held_;
}

}  // namespace demi::products
