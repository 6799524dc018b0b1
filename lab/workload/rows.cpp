#include "lab/workload/rows.h"

#include <fmt/format.h>

#include <cmath>

#include "demi/data/tensor_loader.h"
#include "lab/workload/within_memory.h"

namespace demi::workload {
namespace {

// Normally distributed rows, and the sum of their features with normally distributed weights, so
// that the target has a variance of 1.
data::SyntheticRows linear_rows(int64_t examples, int64_t in, int64_t out, uint64_t seed) {
  data::SyntheticRows rows = data::synthetic_rows(examples, in, 0, seed);
  const at::Tensor weights = data::synthetic_rows(in, out, 0, seed + 1).input;
  rows.target = rows.input.matmul(weights) / std::sqrt(static_cast<double>(in));
  return rows;
}

}  // namespace

Loaders random_rows(const Reading& reading, bool linear) {
  return [reading, make = linear ? linear_rows : data::synthetic_rows](
             const settings::Config& config, DataShape&) {
    const int64_t batch = config.batch_size;
    const int64_t batches = synthetic_batches(config);
    const auto made = within_memory("the rows",
                                    fmt::format("--in {} --out {} --batch-size {} --batches {}",
                                                config.in, config.out, batch, batches),
                                    [&] {
                                      return make(batch * config.ranks * batches, config.in,
                                                  config.out, static_cast<uint64_t>(config.seed));
                                    });
    Workload result;
    result.items = "rows";
    // Scaled in place: a second copy would be the largest tensor of the run.
    const at::Tensor input = made.input.mul_(config.input_scale).to(reading.device),
                     target = made.target.to(reading.device);
    if (config.overfit_batches > 0)
      result.test =
          std::make_shared<data::TensorLoader>(input, target, overfit_order(config, reading));
    data::OrderOptions order = training_order(config, reading);
    order.shuffle = false;  // they are random already
    result.train = with_workers(std::make_shared<data::TensorLoader>(input, target, order), config,
                                reading.device);
    return result;
  };
}

}  // namespace demi::workload
