#include "demi/weights/overlap.h"

#include <c10/core/impl/COWDeleter.h>

#include <algorithm>

namespace demi::weights {
namespace {

/// The bytes from a tensor's first element to the end of its last one.
struct Extent {
  const std::byte* begin;
  const std::byte* end;
  std::size_t place;  // among the tensors
};

std::optional<Extent> extent_of(const at::Tensor& tensor, std::size_t place) {
  if (!tensor.has_storage()) return std::nullopt;
  const at::DataPtr& memory = tensor.storage().data_ptr();
  const bool copied_on_write = memory.get_deleter() == &c10::impl::cow::cow_deleter;
  if (tensor.numel() == 0 || !memory.get() || copied_on_write) return std::nullopt;
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto* begin = static_cast<const std::byte*>(tensor.const_data_ptr());
  return Extent{begin, begin + (last + 1) * tensor.element_size(), place};
}

/// visit(first byte) for every element whose first `dim` indices make up `offset`.
template <class Visit>
void each_element(const at::Tensor& tensor, std::int64_t dim, std::int64_t offset,
                  const Visit& visit) {
  if (dim == tensor.dim()) return visit(offset * tensor.element_size());
  for (std::int64_t i = 0; i < tensor.size(dim); ++i)
    each_element(tensor, dim + 1, offset + i * tensor.stride(dim), visit);
}

/// Whether two tensors whose extents meet share a byte. Dense ones have no gaps; of others every
/// byte is checked, which is slow and rare.
bool share_bytes(const at::Tensor& a, const Extent& of_a, const at::Tensor& b, const Extent& of_b) {
  if (a.is_non_overlapping_and_dense() && b.is_non_overlapping_and_dense()) return true;
  std::vector<bool> taken(of_a.end - of_a.begin);
  each_element(a, 0, 0,
               [&](std::int64_t at) { std::fill_n(taken.begin() + at, a.element_size(), true); });
  bool shared = false;
  each_element(b, 0, 0, [&](std::int64_t from) {
    for (std::int64_t k = 0; k < b.element_size(); ++k) {
      const std::int64_t at = of_b.begin - of_a.begin + from + k;
      shared |= at >= 0 && at < std::ssize(taken) && taken[at];
    }
  });
  return shared;
}

}  // namespace

std::optional<std::pair<std::size_t, std::size_t>> find_overlap(
    const std::vector<at::Tensor>& tensors) {
  std::vector<Extent> extents;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (const auto extent = extent_of(tensors[i], i)) extents.push_back(*extent);
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  std::vector<Extent> open;  // those that reach to where the next one begins, or further
  for (const Extent& next : extents) {
    std::erase_if(open, [&](const Extent& one) { return one.end <= next.begin; });
    for (const Extent& one : open) {
      const at::Tensor &a = tensors[one.place], &b = tensors[next.place];
      if (a.device() == b.device() && share_bytes(a, one, b, next))
        return std::minmax(one.place, next.place);
    }
    open.push_back(next);
  }
  return std::nullopt;
}

}  // namespace demi::weights
