#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "demi/core/export.h"

namespace demi {

/// The bits that decide what dropout keeps are a function of the seed, the offset and the element.
struct DropoutSeed {
  std::uint64_t seed = 0;    // any number; equal seeds and offsets keep the same elements
  std::uint32_t offset = 0;  ///< Another one gives other bits, as another seed does.
};

/// Options of demi::attention.
struct AttentionOptions {
  /// The first token of each document, and the end: (documents + 1), int32 or int64, from 0 to N T.
  /// A document lies within one row of the batch; no query sees a key of another document.
  at::Tensor cu_seqlens = {};
  bool causal = false;    ///< Query i sees keys 0 to i + past.
  std::int64_t past = 0;  ///< Keys before the first query's own, if causal; >= 0.
  /// Broadcast to (N, H, T, S). bool: true where a query sees a key. Floating point: added to the
  /// scaled products, and differentiable.
  at::Tensor mask = {};
  std::optional<double> scale = {};  ///< Default: 1 / sqrt(E).
  double dropout = 0;                ///< Probability, 0 to 1, of a weight to be 0.
  /// Default: drawn from LibTorch's CPU generator, so torch::manual_seed() decides. Refused where
  /// LibTorch's op runs, which draws by itself.
  std::optional<DropoutSeed> dropout_seed = {};
};

/// softmax(scale q k^T + mask) v, differentiable; nothing of T x S is held on a CPU.
///
///     auto y = demi::attention(q, k, v, {.cu_seqlens = starts, .causal = true});
///
/// `q` (N, H, T, E), `k` (N, G, S, E), `v` (N, G, S, F), floating point, of one dtype outside of a
/// region; G divides H: head h reads key head h / (H / G). Returns (N, H, T, F) in q's dtype, or in
/// the one that a region gives scaled_dot_product_attention; the heads of a token are contiguous. A
/// query that sees no key gives 0. Softmax and sums in FP32, in FP64 for FP64.
///
/// On a CPU the way is chosen as docs/reference/attention.md says. On other devices LibTorch's
/// scaled_dot_product_attention runs, once for each document, and draws its own dropout. Throws
/// UsageError for arguments that do not fit, and for gradients of gradients on a CPU.
DEMI_API at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const AttentionOptions& options = {});

}  // namespace demi
