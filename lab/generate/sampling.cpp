#include "lab/generate/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "demi/core/error.h"
#include "demi/data/random_bits.h"

namespace demi::generate {
namespace {

void require_finite(std::span<const float> logits) {
  const auto found = std::ranges::find_if(logits, [](float x) { return !std::isfinite(x); });
  if (found == logits.end()) return;
  throw TrainingError({.where = "generate.probabilities",
                       .what = "the model's output is NaN or Inf",
                       .seen = fmt::format("{} for token {}", *found, found - logits.begin()),
                       .accepted = "finite logits",
                       .advice = "--precision fp32 has the greatest range"});
}

/// The tokens that may come, the greatest logit first.
std::vector<int32_t> likeliest(std::span<const float> logits, int64_t count) {
  std::vector<int32_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto end = tokens.begin() + std::min<int64_t>(count, std::ssize(tokens));
  std::partial_sort(tokens.begin(), end, tokens.end(), [&](int32_t a, int32_t b) {
    const float left = logits[static_cast<std::size_t>(a)];
    const float right = logits[static_cast<std::size_t>(b)];
    return left != right ? left > right : a < b;
  });
  tokens.erase(end, tokens.end());
  return tokens;
}

/// A random number in [0, 1), with 53 bits.
double number_at(uint64_t seed, int64_t sample, int64_t position) {
  const auto bits = data::random_bits(seed, sample, position, data::Purpose::sample);
  return std::ldexp(static_cast<double>((uint64_t{bits[0]} << 32 | bits[1]) >> 11), -53);
}

}  // namespace

void check(const Sampling& sampling) {
  const auto refuse_option = [](std::string_view option, const std::string& seen,
                                std::string_view accepted) {
    refuse({.where = option, .what = "out of range", .seen = seen, .accepted = accepted});
  };
  if (!(sampling.temperature >= 0) || std::isinf(sampling.temperature))
    refuse_option("--temperature", fmt::to_string(sampling.temperature),
                  "0 (always the likeliest token) or more");
  if (sampling.top_k < 1) refuse_option("--top-k", fmt::to_string(sampling.top_k), "1 or more");
}

std::vector<double> probabilities(std::span<const float> logits, const Sampling& sampling) {
  require_finite(logits);
  std::vector<double> all(logits.size());
  const bool is_greedy = sampling.temperature == 0;
  const std::vector<int32_t> tokens = likeliest(logits, is_greedy ? 1 : sampling.top_k);
  const double greatest = logits[static_cast<std::size_t>(tokens.front())];
  double sum = 0;
  for (const int32_t token : tokens) {
    const auto i = static_cast<std::size_t>(token);
    all[i] = is_greedy ? 1 : std::exp((double{logits[i]} - greatest) / sampling.temperature);
    sum += all[i];
  }
  for (const int32_t token : tokens) all[static_cast<std::size_t>(token)] /= sum;
  return all;
}

int32_t draw(std::span<const float> logits, const Sampling& sampling, int64_t sample,
             int64_t position) {
  const std::vector<double> shares = probabilities(logits, sampling);
  const double number = number_at(sampling.seed, sample, position);
  double sum = 0;
  int32_t last = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] == 0) continue;
    last = static_cast<int32_t>(i);
    if ((sum += shares[i]) > number) break;
  }
  return last;  // also where rounding has left the sum below 1
}

}  // namespace demi::generate
