#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "demi/core/export.h"
#include "demi/data/loader.h"

namespace demi::data {

/// Options of making batches ahead.
struct PrefetchOptions {
  int64_t workers = 1;             // threads that make batches, >= 1
  int64_t depth = 2;               // batches that are made ahead, >= 1
  c10::Device device = c10::kCPU;  // where the batches go, as to_device() sends them
};

/// Makes the batches of another loader ahead of time, in threads of its own, each of which uses one
/// core. The batches are the same. The next position is assumed to be the one after the last, then
/// the first of the next epoch. For a GPU, batches are made, pinned and copied on a stream of their
/// own while the step before is computed; the stream that is current in the call of batch() waits
/// for them, and the host does not. An exception of the inner loader is thrown by the call that
/// asks for that batch.
class DEMI_API PrefetchLoader : public Loader {
 public:
  /// Throws UsageError for options out of range, without an inner loader, and where the system
  /// gives fewer threads than there are workers.
  explicit PrefetchLoader(std::shared_ptr<const Loader> inner, const PrefetchOptions& options = {});
  ~PrefetchLoader() override;

  int64_t examples() const override { return inner_->examples(); }
  int64_t all_examples() const override { return inner_->all_examples(); }
  int64_t left_out() const override { return inner_->left_out(); }
  int64_t batches() const override { return inner_->batches(); }
  Batch batch(int64_t epoch, int64_t position) const override;

  /// Sum of the seconds for which calls of batch() waited for a batch that was not ready.
  double seconds_waited() const;

 private:
  class Pipeline;

  std::shared_ptr<const Loader> inner_;
  std::unique_ptr<Pipeline> pipeline_;
};

}  // namespace demi::data
