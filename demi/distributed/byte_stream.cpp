#include "demi/distributed/byte_stream.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstddef>

namespace demi::distributed {

ByteStream::ByteStream(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::int64_t end = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    bytes_.push_back(tensor.detach().as_strided({tensor.numel()}, {1}).view(at::kByte));
    ends_.push_back(end += bytes_.back().numel());
  }
}

template <class Act>
void ByteStream::each_part(std::int64_t begin, const at::Tensor& piece, Act act) const {
  const at::NoGradGuard no_grad;
  const std::int64_t end = begin + piece.numel();
  auto i =
      static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
  for (std::int64_t at = begin; at < end; ++i) {
    const std::int64_t size = std::min(end, ends_[i]) - at;
    act(bytes_[i].narrow(0, bytes_[i].numel() - (ends_[i] - at), size),
        piece.narrow(0, at - begin, size));
    at += size;
  }
}

void ByteStream::read(std::int64_t begin, const at::Tensor& piece) const {
  each_part(begin, piece, [](at::Tensor own, at::Tensor part) { part.copy_(own); });
}

void ByteStream::write(std::int64_t begin, const at::Tensor& piece) const {
  each_part(begin, piece, [](at::Tensor own, at::Tensor part) { own.copy_(part); });
}

}  // namespace demi::distributed
