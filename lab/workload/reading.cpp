#include "lab/workload/reading.h"

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

std::uint32_t checksum_of(const at::Tensor& labels) {
  const at::Tensor numbers = labels.to(at::kLong).contiguous();
  return crc32c(numbers.const_data_ptr(), numbers.nbytes());
}

}  // namespace demi::workload
