#include "lab/workload/memory_format.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>

#include "demi/core/error.h"
#include "demi/data/loader.h"
#include "lab/models/imported.h"
#include "lab/models/registry.h"
#include "lab/models/seeded.h"

namespace demi::workload {

std::string why_not_channels_last(const settings::Config& config, const DataShape& shape,
                                  c10::Device device) {
  models::ModelOptions options = model_options(config, shape);
  options.channels_last = true;
  const models::Seeded own_numbers(0);  // dropout draws none of the caller's
  const at::NoGradGuard no_grad;
  const train::Network network = models::make_model(config.model, options, /*seed=*/0);
  network.module->to(device);
  const auto& input = models::imported_file(config.model).summary.graphs.front().arguments.front();
  const auto& batch = input.sizes.front();
  const int64_t rows = std::clamp<int64_t>(2, batch.least, batch.most);
  const auto on_device = at::TensorOptions(device);
  const data::Batch zeros{
      .input = at::zeros({rows, shape.channels, shape.size, shape.size}, on_device),
      .target = at::zeros({rows}, on_device.dtype(at::kLong))};
  for (const bool trains : {true, false}) {
    network.module->train(trains);
    try {
      network.forward(zeros);
    } catch (const UsageError& error) {
      return error.what();
    }
  }
  return "";
}

}  // namespace demi::workload
