#include "demi/nn/key_value_cache.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

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

void check_added(const at::Tensor& keys, const at::Tensor& values) {
  for (const at::Tensor* added : {&keys, &values}) {
    require_floating(kCache, added == &keys ? "keys" : "values", *added);
    require(kCache, added->dim() == 4, "keys and values do not fit", added->sizes(),
            "(N, G, T, E)");
    require(kCache, !added->requires_grad(), "gradients do not pass through a cache", "a gradient",
            "calls under a NoGradGuard");
  }
  require(kCache, values.sizes().slice(0, 3) == keys.sizes().slice(0, 3),
          "the values do not fit the keys", values.sizes(),
          "rows, heads and tokens of the keys, the first three sizes");
  if (values.scalar_type() != keys.scalar_type() || values.device() != keys.device())
    refuse({.where = kCache,
            .what = "the values do not fit the keys",
            .seen = values.toString() + " on " + values.device().str(),
            .accepted = keys.toString() + " on " + keys.device().str()});
}

/// Memory for them, unless there is: what InferenceMode makes could not be written to outside of
/// it.
void make_room(at::Tensor& buffer, std::int64_t room, const at::Tensor& added) {
  if (is_alike(buffer, added)) return;
  const c10::InferenceMode off(false);
  buffer = at::empty({added.size(0), room, added.size(1), added.size(3)}, added.options());
}

void require_alike(const at::Tensor& buffer, const at::Tensor& added) {
  require(kCache, is_alike(buffer, added), "keys and values are not like those before",
          added.sizes(), "the same rows, heads, size, dtype and device until clear()");
}

}  // namespace

KeyValueCache::KeyValueCache(std::int64_t room) : room_(room) {
  require_size(kCache, "room", room);
}

std::pair<at::Tensor, at::Tensor> KeyValueCache::append(const at::Tensor& keys,
                                                        const at::Tensor& values) {
  check_added(keys, values);
  const std::int64_t added = keys.size(2);
  require(kCache, tokens_ + added <= room_, "no room for the tokens", tokens_ + added,
          "at most " + std::to_string(room_));
  if (tokens_ == 0) make_room(keys_, room_, keys), make_room(values_, room_, values);
  require_alike(keys_, keys), require_alike(values_, values);
  keys_.narrow(1, tokens_, added).copy_(keys.transpose(1, 2));
  values_.narrow(1, tokens_, added).copy_(values.transpose(1, 2));
  tokens_ += added;
  const auto so_far = [&](const at::Tensor& buffer) {
    return buffer.narrow(1, 0, tokens_).transpose(1, 2);
  };
  return {so_far(keys_), so_far(values_)};
}

}  // namespace demi::nn
