#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/distributed/distributed_data_parallel.h"
#include "demi/distributed/process_group.h"

namespace demi::train {

/// The processes that train one model together, as a run sees them. Alone, nothing is sent.
class DEMI_API Ranks {
 public:
  /// A single process.
  Ranks() = default;
  /// The module's parameters and buffers become those of rank 0, and backward averages gradients
  /// from here on. `group`: null, or of one rank, for one process.
  /// `more`: what optimizers hold beside the module's parameters, which is treated alike.
  Ranks(torch::nn::Module& module, std::shared_ptr<distributed::ProcessGroup> group,
        const distributed::DistributedOptions& options, std::vector<at::Tensor> more = {});

  bool are_several() const { return parallel_ != nullptr; }
  /// Rank 0, which alone makes files.
  bool is_first() const { return !are_several() || group_->rank() == 0; }
  /// Null for one process.
  distributed::ProcessGroup* group() const { return are_several() ? group_.get() : nullptr; }

  /// Sums over the ranks, each in FP64; the same bits on every rank, and as many on each.
  std::vector<double> totals(std::vector<double> of_this_rank) const;

  /// Throws UsageError on every rank, with the first line that differs.
  void require_same(const std::string& what, const std::string& text) const;

  /// Throws UsageError on every rank, with rank and parameter, if the weights differ, or a line of
  /// `more`. Does nothing without DistributedOptions::compare_weights.
  void require_same_weights(const std::string& when, const std::string& more) const;

  /// The greatest number of all ranks.
  std::int64_t greatest(std::int64_t number) const;

  /// Null for one process.
  distributed::DistributedDataParallel* parallel() const { return parallel_.get(); }

  /// The number of rank 0.
  std::uint64_t of_first(std::uint64_t number) const;

  /// Seeds LibTorch's random numbers for this rank and step, by a function of `seed`. Two ranks
  /// draw different numbers (dropout), and a run that resumes with more or fewer ranks draws the
  /// same as if it had always had so many.
  void seed(std::uint64_t seed, std::int64_t step) const;

 private:
  std::shared_ptr<distributed::ProcessGroup> group_;
  std::unique_ptr<distributed::DistributedDataParallel> parallel_;  // null for one process
  bool compares_weights_ = true;
};

/// Sums over the ranks of `group`, in FP64; null: of this process alone.
std::vector<double> totals(distributed::ProcessGroup* group, std::vector<double> of_this_rank);

}  // namespace demi::train
