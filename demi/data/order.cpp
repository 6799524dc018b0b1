#include "demi/data/order.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "demi/core/error.h"
#include "demi/data/philox.h"
#include "demi/data/require.h"

namespace demi::data {
namespace {

constexpr Require require_order{"data.Order"};

/// `count` of `examples`, evenly spaced, so that a set sorted by class keeps its mixture.
at::Tensor evenly_spaced(int64_t examples, int64_t count) {
  at::Tensor chosen = at::empty({count}, at::kLong);
  int64_t* out = chosen.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) out[i] = i * examples / count;
  return chosen;
}

}  // namespace

Order::Order(int64_t examples, const OrderOptions& options, Arrange arrange)
    : options_(options), arrange_(std::move(arrange)) {
  require_order(examples >= 0, "a negative number of examples", examples, ">= 0");
  require_order(options.batch_size >= 1, "batch_size is too small", options.batch_size, ">= 1");
  require_order(options.limit >= 0, "limit is negative", options.limit, ">= 0 (0: all)");
  require_order(options.world_size >= 1, "world_size is too small", options.world_size, ">= 1");
  require_order(options.rank >= 0 && options.rank < options.world_size, "rank is out of range",
                options.rank, fmt::format("0 to {}", options.world_size - 1));
  const int64_t used = options.limit > 0 ? std::min(options.limit, examples) : examples;
  chosen_ = evenly_spaced(examples, used);
  rank_examples_ = used / options.world_size;
  const bool rest = !options.drop_last && rank_examples_ % options.batch_size > 0;
  batches_ = rank_examples_ / options.batch_size + (rest ? 1 : 0);
  // A batch may be said to hold more than there is ("all"): from here on it is what it holds.
  options_.batch_size = std::min(options.batch_size, std::max<int64_t>(rank_examples_, 1));
}

Order::~Order() = default;

int64_t Order::batch_start(int64_t position) const {
  return std::min(position * options_.batch_size, rank_examples_);
}

at::Tensor Order::permutation(int64_t epoch) const {
  at::Tensor order = chosen_.clone();
  int64_t* item = order.mutable_data_ptr<int64_t>();
  // Fisher and Yates's shuffle (Knuth, The Art of Computer Programming 2, 3.4.2, algorithm P).
  for (int64_t i = options_.shuffle ? order.numel() - 1 : 0; i > 0; --i) {
    const auto bits = random_bits(options_.seed, epoch, i, Purpose::shuffle);
    std::swap(item[i], item[bounded(bits[0], i + 1)]);
  }
  order = order.narrow(0, 0, rank_examples_ * options_.world_size);
  if (arrange_) order = arrange_(order, epoch);
  if (options_.world_size == 1) return order;
  std::vector<at::Tensor> parts;
  const int64_t ranks = options_.world_size;
  for (int64_t position = 0; position < batches_; ++position) {
    const int64_t start = batch_start(position);
    const int64_t count = batch_start(position + 1) - start;
    parts.push_back(order.narrow(0, start * ranks + options_.rank * count, count));
  }
  return parts.empty() ? order.narrow(0, 0, 0) : at::cat(parts);
}

at::Tensor Order::indices(int64_t epoch, int64_t position) const {
  require_order(position >= 0 && position < batches_, "no batch at that position", position,
                fmt::format("0 to {}", batches_ - 1));
  const std::lock_guard lock(mutex_);
  if (cached_epoch_ != epoch) {
    cached_ = permutation(epoch);
    cached_epoch_ = epoch;
  }
  const int64_t start = batch_start(position);
  return cached_.narrow(0, start, batch_start(position + 1) - start);
}

}  // namespace demi::data
