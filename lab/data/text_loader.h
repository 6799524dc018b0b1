#pragma once

#include <cstdint>

#include "demi/core/export.h"
#include "demi/data/loader.h"
#include "demi/data/order.h"
#include "lab/data/text_set.h"

namespace demi::data {

/// The texts of a loader, their order, and their length.
struct TextLoaderOptions {
  OrderOptions order = {};      // batch size, shuffling, seed, limit, ranks
  int64_t max_length = 0;       // keep the first that many tokens of a text; 0: all
  int64_t vocabulary_size = 0;  // words from that number on become <unk>; 0: none
  /// When shuffling, texts of so many batches are sorted by length among themselves.
  int64_t bucket_batches = 50;
};

/// Batches of texts of about the same length, padded with 0 to the longest of the batch: tokens (N,
/// T) int64, lengths (N), targets (N, 1) fp32 for two classes, (N) int64 for more. Shuffled, every
/// epoch cuts the set into other buckets, sorts each by length, cuts it into batches and shuffles
/// these; unshuffled, the whole set is one bucket, shortest first. The texts of a shuffled epoch's
/// short last batch, and those that drop_last leaves out, are chosen before anything is sorted.
class DEMI_API TextLoader : public Loader {
 public:
  /// Throws UsageError.
  TextLoader(TextSet set, int64_t classes, TextLoaderOptions options);

  int64_t examples() const override { return order_.examples(); }
  int64_t all_examples() const override { return order_.all_examples(); }
  int64_t left_out() const override { return order_.left_out(); }
  int64_t batches() const override { return order_.batches(); }
  Batch batch(int64_t epoch, int64_t position) const override;

 private:
  at::Tensor by_length(const at::Tensor& texts, int64_t epoch) const;
  int64_t length(int64_t text) const;

  TextSet set_;
  int64_t classes_;
  TextLoaderOptions options_;
  Order order_;
};

}  // namespace demi::data
