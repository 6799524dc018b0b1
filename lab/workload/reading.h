#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "demi/data/loader.h"
#include "demi/data/order.h"
#include "lab/data/registry.h"
#include "lab/settings/config.h"
#include "lab/workload/workload.h"

// Types that the readers of each kind of data share: pictures, rows, texts, running_texts.
namespace demi::workload {

/// The data to read, and the device of the batches.
struct Reading {
  const data::DataSet* data;
  c10::Device device;
  RankPart part;
  std::shared_ptr<const ModelData> model = nullptr;  // of a saved one; null: the data decide
  bool test_alone = false;                           // of a saved one: nothing is trained
};

/// The result of a reader: makes the workload of a config without its network, and fills in
/// `shape`.
using Loaders = std::function<Workload(const settings::Config& config, DataShape& shape)>;

/// Batches of a dry run: two steps.
int64_t dry_run_batches(const settings::Config& config);

/// Batches of an epoch of synthetic data.
int64_t synthetic_batches(const settings::Config& config);

/// The order of the examples that are trained on.
data::OrderOptions training_order(const settings::Config& config, const Reading& reading);

/// The order of the test examples.
data::OrderOptions test_order(const settings::Config& config, const Reading& reading);

/// The order of the test of a run that overfits: its training batches.
data::OrderOptions overfit_order(const settings::Config& config, const Reading& reading);

/// The loader, or one whose batches the config's workers prepare ahead.
std::shared_ptr<const data::Loader> with_workers(std::shared_ptr<const data::Loader> loader,
                                                 const settings::Config& config,
                                                 c10::Device device);

/// A note on the classes that a limit leaves out of an order's examples; empty if there are none,
/// or if a random draw of as many would miss them, too: it would have fewer than five examples of
/// them. One class alone is always said. `part` is "training" or "test".
std::string note_on_lost_classes(const at::Tensor& labels, const std::vector<std::string>& classes,
                                 const data::OrderOptions& order, std::string_view part);

/// The notes of what is trained on and tested on.
std::string note_on_lost_classes(const at::Tensor* train, const at::Tensor* test,
                                 const std::vector<std::string>& classes,
                                 const settings::Config& config, const Reading& reading);

/// Adds a note to others.
void add_note(std::string& notes, const std::string& note);

/// CRC-32C of labels, as int64.
std::uint32_t checksum_of(const at::Tensor& labels);

}  // namespace demi::workload
