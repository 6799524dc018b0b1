#include "demi/products/product_in_fp32.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "demi/kernels/bf16_product.h"
#include "demi/products/through_fp32.h"

namespace demi::products {
namespace {

constexpr std::int64_t kPanel = 64;   // columns of b that are packed together
constexpr std::int64_t kDepth = 256;  // rows of a panel at a time: 32 KiB, a first level cache
constexpr std::int64_t kTall = 256;   // rows of a at a time: their part of a and c is in the second

std::uint16_t* bits_of(const at::Tensor& tensor) {
  return static_cast<std::uint16_t*>(tensor.mutable_data_ptr());
}

/// Panels of b, one after the other, each of `size` numbers.
at::Tensor packed_panels(const kernels::Bf16Product& own, const at::Tensor& b, std::int64_t size) {
  const std::int64_t k = b.size(0), n = b.size(1), panels = (n + kPanel - 1) / kPanel;
  const at::Tensor packed = at::empty({panels * size}, b.options());
  const auto* from = static_cast<const std::uint16_t*>(b.const_data_ptr());
  std::uint16_t* to = bits_of(packed);
  at::parallel_for(0, panels, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t panel = begin; panel < end; ++panel) {
      const std::int64_t column = panel * kPanel;
      own.pack(to + panel * size, from + column * b.stride(1), k, std::min(kPanel, n - column),
               b.stride(0), b.stride(1));
    }
  });
  return packed;
}

at::Tensor product_of_bf16(const kernels::Bf16Product& own, const at::Tensor& given_a,
                           const at::Tensor& b) {
  const at::Tensor a = given_a.contiguous();
  const std::int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  const std::int64_t size = kernels::Bf16Product::packed_size(k, std::min(kPanel, n));
  const std::int64_t panels = (n + kPanel - 1) / kPanel, heights = (m + kTall - 1) / kTall;
  const at::Tensor packed = packed_panels(own, b, size);
  const at::Tensor c = at::empty({m, n}, a.options().dtype(at::kFloat));
  const std::uint16_t *rows = bits_of(a), *columns = bits_of(packed);
  auto* sums = c.mutable_data_ptr<float>();
  at::parallel_for(0, panels * heights, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t row = task / panels * kTall, column = task % panels * kPanel;
      const std::int64_t width = std::min(kPanel, n - column), height = std::min(kTall, m - row);
      const std::int64_t padded = (width + 15) / 16 * 16;
      for (std::int64_t depth = 0; depth < k; depth += kDepth)
        own.multiply(rows + row * k + depth, k, columns + column / kPanel * size + depth * padded,
                     (k + 1) / 2 * 2, sums + row * n + column, n, height,
                     std::min(kDepth, k - depth), width, /*add=*/depth > 0);
    }
  });
  return c;
}

}  // namespace

at::Tensor product_in_fp32(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == at::kFloat) return at::mm(a, b);
  if (a.is_cuda()) return at::mm(a, b, at::kFloat);
  const kernels::Bf16Product* own =
      a.is_cpu() && !slow_in(at::kBFloat16) ? kernels::bf16_product() : nullptr;
  if (!own || a.numel() == 0 || b.numel() == 0) return at::mm(a.to(at::kFloat), b.to(at::kFloat));
  return product_of_bf16(*own, a, b);
}

}  // namespace demi::products
