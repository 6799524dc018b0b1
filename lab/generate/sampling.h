#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "demi/core/export.h"

namespace demi::generate {

/// Options of drawing a token; the values are nanoGPT's (sample.py).
struct Sampling {
  double temperature = 0.8;  ///< Divides the logits. 0: always the likeliest token.
  int64_t top_k = 200;       ///< The likeliest tokens alone may come; more than there are: all.
  /// Seed of the random numbers.
  uint64_t seed = 1337;
};

/// Throws UsageError: a temperature below 0, NaN or infinite, a top_k below 1.
DEMI_API void check(const Sampling& sampling);

/// Probabilities by token: softmax(logits / temperature) over the top_k greatest logits, 0 for the
/// others. Among equal logits the lower tokens come first. Throws TrainingError for a logit that is
/// NaN or infinite.
DEMI_API std::vector<double> probabilities(std::span<const float> logits, const Sampling& sampling);

/// The token at `position` in text number `sample`: the first one up to which the probabilities add
/// up to more than a random number. That is a function of seed, sample and position alone, the same
/// on every machine.
DEMI_API int32_t draw(std::span<const float> logits, const Sampling& sampling, int64_t sample,
                      int64_t position);

}  // namespace demi::generate
