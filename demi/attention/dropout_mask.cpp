#include "demi/attention/dropout_mask.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "demi/core/philox.h"

namespace demi::sdpa {
namespace {

using philox::Block;

struct Row {
  std::uint32_t matrix, query, offset;
  philox::Key key;

  Block bits(std::int64_t block) const {
    return philox::generate({std::uint32_t(block), query, matrix, offset}, key);
  }
};

/// Keys first to first + n of one query.
template <class Number>
void fill_row(Number* to, std::int64_t first, std::int64_t n, const Row& row,
              std::uint64_t threshold, Number kept) {
  for (std::int64_t j = 0; j < n;) {
    const std::int64_t key = first + j;
    const Block bits = row.bits(key / 4);
    for (std::int64_t lane = key % 4; lane < 4 && j < n; ++lane, ++j)
      to[j] = bits[std::size_t(lane)] >= threshold ? kept : Number(0);
  }
}

template <class Number>
void fill_mask(const at::Tensor& mask, const Dropout& dropout, BlockStart start) {
  const std::int64_t heads = mask.size(1), queries = mask.size(2), keys = mask.size(3);
  const auto threshold = std::uint64_t(dropout.p * 4294967296.0);
  const auto kept = Number(dropout.p < 1 ? 1 / (1 - dropout.p) : 0);
  auto* values = mask.mutable_data_ptr<Number>();
  const auto fill = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t line = begin; line < end; ++line) {
      const std::int64_t n = line / queries / heads, h = line / queries % heads;
      const std::int64_t matrix =
          (dropout.first_row + start.row + n) * start.heads + start.head + h;
      const Row row{std::uint32_t(matrix),
                    std::uint32_t(dropout.first_token + start.query + line % queries),
                    dropout.offset,
                    {std::uint32_t(dropout.seed), std::uint32_t(dropout.seed >> 32)}};
      fill_row(values + line * keys, dropout.first_token, keys, row, threshold, kept);
    }
  };
  constexpr std::int64_t kElementsAThread = 4096;
  at::parallel_for(0, mask.size(0) * heads * queries,
                   std::max<std::int64_t>(1, kElementsAThread / std::max<std::int64_t>(keys, 1)),
                   fill);
}

}  // namespace

at::Tensor dropout_mask(at::IntArrayRef sizes, at::ScalarType dtype, const Dropout& dropout,
                        BlockStart start) {
  at::Tensor mask = at::empty(sizes, dtype);
  if (dtype == at::kDouble)
    fill_mask<double>(mask, dropout, start);
  else
    fill_mask<float>(mask, dropout, start);
  return mask;
}

}  // namespace demi::sdpa
