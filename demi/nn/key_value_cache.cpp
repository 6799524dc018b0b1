#include "demi/nn/key_value_cache.h"

#include <ATen/ATen.h>

#include <string>

#include "demi/nn/require.h"

namespace demi::nn {
namespace {

constexpr std::string_view kCache = "nn.KeyValueCache";

bool is_alike(const at::Tensor& buffer, const at::Tensor& added) {
  return buffer.defined() && buffer.size(0) == added.size(0) && buffer.size(2) == added.size(1) &&
         buffer.size(3) == added.size(3) && buffer.scalar_type() == added.scalar_type() &&
         buffer.device() == added.device();
}

void append_to(at::Tensor& buffer, std::int64_t room, std::int64_t past, const at::Tensor& added) {
  require(kCache, added.dim() == 4, "keys and values do not fit", added.sizes(), "(N, G, T, E)");
  require(kCache, !added.requires_grad(), "gradients do not pass through a cache", "a gradient",
          "calls under a NoGradGuard");
  if (past == 0 && !is_alike(buffer, added))
    buffer = at::empty({added.size(0), room, added.size(1), added.size(3)}, added.options());
  require(kCache, is_alike(buffer, added), "keys and values are not like those before",
          added.sizes(), "the same rows, heads, size, dtype and device until clear()");
  buffer.narrow(1, past, added.size(2)).copy_(added.transpose(1, 2));
}

}  // namespace

KeyValueCache::KeyValueCache(std::int64_t room) : room_(room) {
  require_size(kCache, "room", room);
}

std::pair<at::Tensor, at::Tensor> KeyValueCache::append(const at::Tensor& keys,
                                                        const at::Tensor& values) {
  const std::int64_t added = keys.size(-2);
  require(kCache, tokens_ + added <= room_, "no room for the tokens", tokens_ + added,
          "at most " + std::to_string(room_));
  append_to(keys_, room_, tokens_, keys);
  append_to(values_, room_, tokens_, values);
  tokens_ += added;
  const auto so_far = [&](const at::Tensor& buffer) {
    return buffer.narrow(1, 0, tokens_).transpose(1, 2);
  };
  return {so_far(keys_), so_far(values_)};
}

}  // namespace demi::nn
