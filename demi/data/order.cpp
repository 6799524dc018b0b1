#include "demi/data/order.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "demi/data/random_bits.h"
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
  const int64_t ranks = options.world_size;
  const int64_t chosen = options.limit > 0 ? std::min(options.limit, examples) : examples;
  chosen_ = evenly_spaced(examples, chosen);
  ordered_ = used_ = options.keep_all ? chosen : chosen / ranks * ranks;
  // A batch size may exceed the number of examples ("all"): it is reduced to that.
  const int64_t most = std::max<int64_t>((used_ + ranks - 1) / ranks, 1);
  const bool is_short = options.batch_size > used_ / ranks;
  options_.batch_size = std::min(options.batch_size, most);
  const int64_t batch = options_.batch_size * ranks;
  if (options.drop_last) used_ = is_short ? 0 : used_ / batch * batch;
  batches_ = used_ / batch + (used_ % batch > 0 ? 1 : 0);
  if (batches_ > 0 && part(batches_ - 1).count == 0) --batches_;
}

Order::~Order() = default;

Order::Part Order::part(int64_t position) const {
  const int64_t ranks = options_.world_size, rank = options_.rank;
  const int64_t whole_start = std::min(position * options_.batch_size * ranks, used_);
  const int64_t whole = std::min(options_.batch_size * ranks, used_ - whole_start);
  const int64_t start = whole * rank / ranks;
  return {whole_start, start, whole * (rank + 1) / ranks - start};
}

int64_t Order::all_examples() const { return used_; }

int64_t Order::left_out() const { return chosen_.numel() - used_; }

int64_t Order::batch_start(int64_t position) const {
  // All batches before the last are whole.
  if (position == 0) return 0;
  return (position - 1) * options_.batch_size + part(position - 1).count;
}

int64_t Order::place(int64_t position) const {
  const Part own = part(position);
  return own.whole_start + own.start;
}

at::Tensor Order::permutation(int64_t epoch) const {
  at::Tensor order = chosen_.clone();
  int64_t* item = order.mutable_data_ptr<int64_t>();
  // Fisher and Yates's shuffle (Knuth, The Art of Computer Programming 2, 3.4.2, algorithm P).
  for (int64_t i = options_.shuffle ? order.numel() - 1 : 0; i > 0; --i) {
    const auto bits = random_bits(options_.seed, epoch, i, Purpose::shuffle);
    std::swap(item[i], item[bounded(bits[0], i + 1)]);
  }
  order = order.narrow(0, 0, ordered_);
  if (arrange_) order = arrange_(order, epoch);
  if (options_.world_size == 1) return order;
  std::vector<at::Tensor> parts;
  for (int64_t position = 0; position < batches_; ++position)
    parts.push_back(order.narrow(0, place(position), part(position).count));
  return parts.empty() ? order.narrow(0, 0, 0) : at::cat(parts);
}

at::Tensor Order::indices(int64_t epoch, int64_t position) const {
  require_order(position >= 0 && position < batches_, "no batch at that position", position,
                fmt::format("0 to {}", batches_ - 1));
  const std::lock_guard lock(mutex_);
  const int64_t start = batch_start(position);
  return cached(epoch).narrow(0, start, batch_start(position + 1) - start);
}

at::Tensor Order::epoch_indices(int64_t epoch) const {
  const std::lock_guard lock(mutex_);
  return cached(epoch).narrow(0, 0, examples());
}

const at::Tensor& Order::cached(int64_t epoch) const {
  if (!cached_.defined() || cached_epoch_ != epoch) {
    cached_ = permutation(epoch);
    cached_epoch_ = epoch;
  }
  return cached_;
}

}  // namespace demi::data
