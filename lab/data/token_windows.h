#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "demi/core/export.h"
#include "demi/data/loader.h"
#include "demi/data/order.h"
#include "lab/tokens/token_files.h"

namespace demi::data {

/// The tokens [first, first + size) of a source, shared.
struct TokenSpan {
  std::shared_ptr<const tokens::TokenSource> source;  // what they are part of
  int64_t first = 0, size = 0;                        // number of the first; how many
};

/// Windows of a batch, batches of an epoch, and who reads which.
struct RandomWindowsOptions {
  int64_t context = 64;              // tokens of a window
  int64_t batch_size = 12;           // windows a batch and rank
  int64_t batches = 250;             // batches of an epoch: a span has no end of its own
  int64_t limit = 0;                 // places that a window may begin at, evenly spaced; 0: all
  uint64_t seed = 0;                 // of the places
  int64_t rank = 0, world_size = 1;  // of several processes, which share each batch
};

/// Batches of windows that begin at random places of the span: input (N, T) int64, target (N, T)
/// int64, the token after each. Where a window begins is a function of the seed and of its number
/// since the first epoch, so that neither the length of an epoch nor the number of ranks changes
/// what all ranks together read in a step.
class DEMI_API RandomWindows : public Loader {
 public:
  /// Throws UsageError for options out of range and for a span of fewer than context + 1 tokens.
  RandomWindows(TokenSpan tokens, const RandomWindowsOptions& options);

  int64_t examples() const override { return options_.batches * options_.batch_size; }
  int64_t all_examples() const override { return examples() * options_.world_size; }
  int64_t batches() const override { return options_.batches; }
  Batch batch(int64_t epoch, int64_t position) const override;

 private:
  int64_t place(int64_t window) const;

  TokenSpan tokens_;
  RandomWindowsOptions options_;
};

/// Batches of the span's windows one after the other, each token but the first a target once. The
/// last window is padded: token 0, target -100, which counts nowhere.
class DEMI_API ConsecutiveWindows : public Loader {
 public:
  /// Throws UsageError for options out of range and for a span of fewer than two tokens.
  ConsecutiveWindows(TokenSpan tokens, int64_t context, const OrderOptions& order);

  int64_t examples() const override { return order_.examples(); }
  int64_t all_examples() const override { return order_.all_examples(); }
  int64_t left_out() const override { return order_.left_out(); }
  int64_t batches() const override { return order_.batches(); }
  Batch batch(int64_t epoch, int64_t position) const override;

 private:
  TokenSpan tokens_;
  int64_t context_;
  Order order_;
};

}  // namespace demi::data
