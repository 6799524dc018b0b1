#include "demi/checkpoint/content_checksum.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "demi/core/crc32c.h"

namespace demi::checkpoint {

uint32_t content_checksum(const Metadata& metadata, std::vector<TensorSum> tensors) {
  uint32_t sum = 0;
  const auto add = [&sum](std::string_view text) { sum = crc32c(text.data(), text.size(), sum); };
  for (const auto& [name, value] : metadata) {
    if (!name.starts_with("demi.") || name == kContentChecksum) continue;
    add(fmt::format("{} {} {} ", name.size(), name, value.size()));
    add(value);
    add("\n");
  }
  std::ranges::sort(tensors, {}, &TensorSum::name);
  for (const TensorSum& tensor : tensors)
    add(fmt::format("{} {} {} {} {:08x}\n", tensor.name.size(), tensor.name, tensor.dtype,
                    fmt::join(tensor.shape, ","), tensor.sum));
  return sum;
}

}  // namespace demi::checkpoint
