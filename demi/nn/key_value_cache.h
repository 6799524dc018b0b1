#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "demi/core/export.h"

namespace demi::nn {

/// Keys and values of the tokens that a self-attention layer has read, so that those to come are
/// computed alone. For inference: gradients do not pass through it. Filled in InferenceMode it is
/// used outside of it, and the other way round. A copy shares its memory.
class DEMI_API KeyValueCache {
 public:
  /// Throws UsageError for room for less than one token.
  explicit KeyValueCache(std::int64_t room);

  /// Tokens in it, and tokens that it can hold.
  std::int64_t tokens() const { return tokens_; }
  /// Tokens that it can hold.
  std::int64_t room() const { return room_; }

  /// Forgets all tokens. The memory stays.
  void clear() { tokens_ = 0; }

  /// Adds `keys` and `values` (N, G, T, E) and returns those of all tokens, (N, G, tokens(), E), as
  /// views that stay right until the next call. Memory is taken at the first call. Throws
  /// UsageError: values of other rows, heads, tokens, dtype or device than the keys, no room for
  /// them, other rows, heads, size, dtype or device than those before, gradients.
  std::pair<at::Tensor, at::Tensor> append(const at::Tensor& keys, const at::Tensor& values);

 private:
  at::Tensor keys_, values_;  // (N, room, G, E): of one row, the tokens so far have no holes
  std::int64_t room_, tokens_ = 0;
};

}  // namespace demi::nn
