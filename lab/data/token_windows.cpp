#include "lab/data/token_windows.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "demi/data/random_bits.h"
#include "demi/data/require.h"

namespace demi::data {
namespace {

constexpr int64_t kNoTarget = -100;  // LibTorch's ignore_index

constexpr Require require_random{"data.RandomWindows"};
constexpr Require require_consecutive{"data.ConsecutiveWindows"};

// Uniform up to below / 2^64: token files have more than 2^32 tokens.
int64_t below(const philox::Block& bits, int64_t bound) {
  const uint64_t drawn = uint64_t{bits[0]} << 32 | bits[1];
  return static_cast<int64_t>((static_cast<unsigned __int128>(drawn) *  // NOLINT: 128 bits
                               static_cast<unsigned __int128>(bound)) >>
                              64);
}

// Rows of input and target, of `context` tokens each.
struct Rows {
  explicit Rows(int64_t rows, int64_t context)
      : batch{.input = at::empty({rows, context}, at::kLong),
              .target = at::empty({rows, context}, at::kLong)},
        window(static_cast<std::size_t>(context + 1)) {}

  // The `count` tokens from the span's `start` on, and the one behind each.
  void fill(const TokenSpan& tokens, int64_t row, int64_t start, int64_t count) {
    tokens.source->copy(tokens.first + start, count + 1, window.data());
    const auto context = static_cast<int64_t>(window.size()) - 1;
    int64_t* input = batch.input.mutable_data_ptr<int64_t>() + row * context;
    int64_t* target = batch.target.mutable_data_ptr<int64_t>() + row * context;
    std::fill(std::copy_n(window.begin(), count, input), input + context, 0);
    std::fill(std::copy_n(window.begin() + 1, count, target), target + context, kNoTarget);
  }

  Batch batch;
  std::vector<int64_t> window;
};

void require_position(const Require& require, int64_t position, int64_t batches) {
  require(position >= 0 && position < batches, "no such batch", position,
          fmt::format("0 to {}", batches - 1));
}

int64_t windows_of(const TokenSpan& tokens, int64_t context) {
  require_consecutive(context >= 1, "the context is too short", context, ">= 1");
  require_consecutive(tokens.size >= 2, "too few tokens", tokens.size, ">= 2");
  return (tokens.size - 2) / context + 1;
}

}  // namespace

RandomWindows::RandomWindows(TokenSpan tokens, const RandomWindowsOptions& options)
    : tokens_(std::move(tokens)), options_(options) {
  require_random(options.context >= 1, "the context is too short", options.context, ">= 1");
  require_random(options.batch_size >= 1, "batch_size is too small", options.batch_size, ">= 1");
  require_random(options.batches >= 1, "too few batches", options.batches, ">= 1");
  require_random(options.limit >= 0, "limit is negative", options.limit, ">= 0 (0: all)");
  require_random(options.world_size >= 1, "world_size is too small", options.world_size, ">= 1");
  require_random(options.rank >= 0 && options.rank < options.world_size, "no such rank",
                 options.rank, fmt::format("0 to {}", options.world_size - 1));
  require_random(tokens_.size > options.context, "too few tokens for one window", tokens_.size,
                 fmt::format("{} or more: the context and one token", options.context + 1));
}

int64_t RandomWindows::place(int64_t window) const {
  const int64_t places = tokens_.size - options_.context;
  const int64_t used = options_.limit > 0 ? std::min(options_.limit, places) : places;
  const int64_t drawn = below(random_bits(options_.seed, 0, window, Purpose::window), used);
  return used == places
             ? drawn
             : static_cast<int64_t>(static_cast<__int128>(drawn) * places / used);  // NOLINT
}

Batch RandomWindows::batch(int64_t epoch, int64_t position) const {
  require_position(require_random, position, batches());
  const int64_t rows = options_.batch_size;
  const int64_t all = epoch * options_.batches + position;
  const int64_t first = (all * options_.world_size + options_.rank) * rows;
  Rows made(rows, options_.context);
  for (int64_t row = 0; row < rows; ++row)
    made.fill(tokens_, row, place(first + row), options_.context);
  return made.batch;
}

ConsecutiveWindows::ConsecutiveWindows(TokenSpan tokens, int64_t context, const OrderOptions& order)
    : tokens_(std::move(tokens)), context_(context), order_(windows_of(tokens_, context), order) {}

Batch ConsecutiveWindows::batch(int64_t epoch, int64_t position) const {
  const at::Tensor chosen = order_.indices(epoch, position);
  const int64_t* window = chosen.const_data_ptr<int64_t>();
  Rows made(chosen.numel(), context_);
  for (int64_t row = 0; row < chosen.numel(); ++row) {
    const int64_t start = window[row] * context_;
    made.fill(tokens_, row, start, std::min(context_, tokens_.size - 1 - start));
  }
  return made.batch;
}

}  // namespace demi::data
