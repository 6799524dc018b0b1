#include "lab/workload/reading.h"

#include <ATen/ops/bincount.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "demi/core/crc32c.h"
#include "demi/data/prefetch_loader.h"

namespace demi::workload {

int64_t dry_run_batches(const settings::Config& config) {
  return 2 * settings::batches_of_step(config);
}

int64_t synthetic_batches(const settings::Config& config) {
  return config.dry_run ? dry_run_batches(config) : config.batches;
}

data::OrderOptions training_order(const settings::Config& config, const Reading& reading) {
  const int64_t batch = config.batch_size;
  data::OrderOptions order{.batch_size = batch,
                           .shuffle = true,
                           .seed = static_cast<uint64_t>(config.seed),
                           .limit = config.limit,
                           .rank = reading.part.rank,
                           .world_size = reading.part.ranks};
  if (config.overfit_batches > 0) order.limit = config.overfit_batches * batch * config.ranks;
  if (config.dry_run) order.limit = dry_run_batches(config) * batch * config.ranks;
  return order;
}

data::OrderOptions test_order(const settings::Config& config, const Reading& reading) {
  data::OrderOptions order{.batch_size = config.test_batch_size,
                           .rank = reading.part.rank,
                           .world_size = reading.part.ranks,
                           .keep_all = true};
  if (config.limit > 0) order.limit = std::max<int64_t>(1, config.limit / 6);
  if (config.test_limit > 0) order.limit = config.test_limit;
  if (config.dry_run) order.limit = config.test_batch_size;
  return order;
}

data::OrderOptions overfit_order(const settings::Config& config, const Reading& reading) {
  data::OrderOptions order = training_order(config, reading);
  order.shuffle = false;
  if (config.dry_run) order.limit = order.batch_size * config.ranks;  // one test batch
  return order;
}

std::shared_ptr<const data::Loader> with_workers(std::shared_ptr<const data::Loader> loader,
                                                 const settings::Config& config,
                                                 c10::Device device) {
  if (config.workers == 0) return loader;
  return std::make_shared<data::PrefetchLoader>(
      std::move(loader),
      data::PrefetchOptions{
          .workers = config.workers, .depth = 2 * config.workers, .device = device});
}

std::string note_on_lost_classes(const at::Tensor& labels, const std::vector<std::string>& classes,
                                 const data::OrderOptions& order, std::string_view part) {
  constexpr double kEnough = 5;  // a random draw misses what it would have five of in 1 of 150
  constexpr std::size_t kShown = 10;
  const int64_t all = labels.size(0), limit = order.limit;
  if (limit <= 1 || limit >= all) return "";
  const data::Order chosen(all, {.batch_size = limit, .limit = limit});
  const auto count = [&](const at::Tensor& of) {
    return at::bincount(of, {}, static_cast<int64_t>(classes.size()));
  };
  const at::Tensor before = count(labels),
                   after = count(labels.index_select(0, chosen.epoch_indices(0)));
  std::vector<std::string> lost;
  int64_t examples = 0, kept = 0;
  for (std::size_t c = 0; c < classes.size(); ++c) {
    const auto at = static_cast<int64_t>(c);
    const auto had = before[at].item<int64_t>(), has = after[at].item<int64_t>();
    if (has > 0) ++kept;
    if (had == 0 || has > 0) continue;
    examples += had;
    lost.push_back(classes[c]);
  }
  const double expected =
      static_cast<double>(examples) * static_cast<double>(limit) / static_cast<double>(all);
  if (lost.empty() || (expected < kEnough && kept > 1)) return "";
  const std::size_t more = lost.size() - std::min(lost.size(), kShown);
  lost.resize(lost.size() - more);
  return fmt::format(
      "the {} {} examples that a limit leaves have none of {}{}, which the data have: they are "
      "evenly spaced; shuffle the data, or give another limit",
      limit, part, fmt::join(lost, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
}

std::string note_on_lost_classes(const at::Tensor* train, const at::Tensor* test,
                                 const std::vector<std::string>& classes,
                                 const settings::Config& config, const Reading& reading) {
  std::string notes;
  if (config.dry_run) return notes;  // its few batches are for no result
  if (train)
    notes = note_on_lost_classes(*train, classes, training_order(config, reading), "training");
  if (test && config.overfit_batches == 0)
    add_note(notes, note_on_lost_classes(*test, classes, test_order(config, reading), "test"));
  return notes;
}

void add_note(std::string& notes, const std::string& note) {
  if (!notes.empty() && !note.empty()) notes += "; ";
  notes += note;
}

std::uint32_t checksum_of(const at::Tensor& labels) {
  const at::Tensor numbers = labels.to(at::kLong).contiguous();
  return crc32c(numbers.const_data_ptr(), numbers.nbytes());
}

}  // namespace demi::workload
