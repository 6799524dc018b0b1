#include "demi/distributed/text.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <cstring>

#include "demi/distributed/process_group.h"

namespace demi::distributed {

std::string broadcast_text(const std::string& own, int root, ProcessGroup& group) {
  const at::Tensor length = at::full({1}, static_cast<std::int64_t>(own.size()), at::kLong);
  group.start_broadcast(length, root).wait();
  const at::Tensor bytes = at::zeros({length.item<std::int64_t>()}, at::kByte);
  if (bytes.numel() == 0) return {};
  if (group.rank() == root) std::memcpy(bytes.mutable_data_ptr(), own.data(), own.size());
  group.start_broadcast(bytes, root).wait();
  return {static_cast<const char*>(bytes.const_data_ptr()),
          static_cast<std::size_t>(bytes.numel())};
}

}  // namespace demi::distributed
