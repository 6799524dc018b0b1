#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "demi/core/export.h"
#include "demi/data/loader.h"
#include "demi/data/order.h"

namespace demi::data {

/// The tensors of a batch's examples as one with a new first extent, as
/// torch::data::transforms::Stack makes it. Throws UsageError if they differ in shape or dtype;
/// `part` is named in the message.
DEMI_API at::Tensor stack_examples(const std::vector<at::Tensor>& examples, std::string_view part);

/// The size of a dataset; throws UsageError if it has none.
DEMI_API int64_t size_of_dataset(std::optional<std::size_t> size);

/// Batches of a dataset of torch::data that gives each example by its index: a Dataset of one's
/// own, MNIST, or `dataset.map(transform)` of one. Its examples become input and target: of Stack
/// as they are, without it by stack_examples; a target of type NoTarget stays undefined. A last
/// transform may also make a demi::data::Batch, with the lengths of texts.
///
/// It uses no samplers and workers of torch's DataLoader: OrderOptions give the order, and
/// PrefetchLoader has workers. As with torch's workers each thread has a copy of the dataset, made
/// when first needed. `get_batch` has to be a function of the indices: if it draws random numbers
/// from a global generator, a resumed run gets others.
template <class Dataset>
class DatasetLoader : public Loader {
  using Examples = typename Dataset::BatchType;
  static_assert(
      requires(Dataset & set) { set.get_batch(c10::ArrayRef<std::size_t>()); } &&
          !Dataset::is_stateful,
      "demi::data::DatasetLoader: the dataset has no examples by index (a stream, a "
      "ChunkDataset); torch::data::make_data_loader gives its batches to a loop of yours");

 public:
  /// The dataset is copied as torch's are: its tensors are shared. Throws UsageError if it does not
  /// know its size.
  explicit DatasetLoader(Dataset dataset, const OrderOptions& order = {})
      : dataset_(std::move(dataset)), order_(size_of_dataset(dataset_.size()), order) {}

  int64_t examples() const override { return order_.examples(); }
  int64_t all_examples() const override { return order_.all_examples(); }
  int64_t left_out() const override { return order_.left_out(); }
  int64_t batches() const override { return order_.batches(); }

  Batch batch(int64_t epoch, int64_t position) const override {
    const at::Tensor chosen = order_.indices(epoch, position).contiguous();
    const int64_t* first = chosen.const_data_ptr<int64_t>();
    const std::vector<std::size_t> indices(first, first + chosen.numel());
    std::unique_ptr<Dataset> mine = take();
    Batch made = batch_of(mine->get_batch(indices));
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(mine));
    return made;
  }

 private:
  std::unique_ptr<Dataset> take() const {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Dataset>(dataset_);
    std::unique_ptr<Dataset> one = std::move(idle_.back());
    idle_.pop_back();
    return one;
  }

  static Batch batch_of(Examples examples) {
    if constexpr (std::is_convertible_v<Examples, Batch>) {
      return examples;
    } else if constexpr (requires { examples.begin(); }) {
      std::vector<at::Tensor> inputs, targets;
      for (const auto& example : examples) {
        inputs.push_back(example.data);
        if constexpr (requires { example.target; }) targets.push_back(example.target);
      }
      Batch made{.input = stack_examples(inputs, "inputs")};
      if (!targets.empty()) made.target = stack_examples(targets, "targets");
      return made;
    } else {
      Batch made{.input = examples.data};
      if constexpr (requires { examples.target; }) made.target = examples.target;
      return made;
    }
  }

  Dataset dataset_;
  Order order_;
  mutable std::mutex mutex_;  // guards the list
  mutable std::vector<std::unique_ptr<Dataset>> idle_;
};

/// A DatasetLoader, for a Trainer or a PrefetchLoader.
template <class Dataset>
std::shared_ptr<DatasetLoader<Dataset>> loader_of(Dataset dataset, const OrderOptions& order = {}) {
  return std::make_shared<DatasetLoader<Dataset>>(std::move(dataset), order);
}

}  // namespace demi::data
