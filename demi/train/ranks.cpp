#include "demi/train/ranks.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <torch/utils.h>

#include <bit>
#include <utility>

#include "demi/data/philox.h"

namespace demi::train {

Ranks::Ranks(torch::nn::Module& module, std::shared_ptr<distributed::ProcessGroup> group,
             const distributed::DistributedOptions& options) {
  if (!group || group->world_size() == 1) return;
  group_ = std::move(group);
  parallel_ = std::make_unique<distributed::DistributedDataParallel>(module, *group_, options);
}

std::vector<double> totals(distributed::ProcessGroup* group, std::vector<double> of_this_rank) {
  if (!group || group->world_size() == 1) return of_this_rank;
  // A collective that fails may still write to the tensor, so the tensor owns its memory.
  const at::Tensor sums =
      at::from_blob(of_this_rank.data(), {static_cast<std::int64_t>(of_this_rank.size())},
                    at::kDouble)
          .clone();
  group->all_reduce(sums);
  const auto* sum = sums.const_data_ptr<double>();
  return {sum, sum + sums.numel()};
}

std::vector<double> Ranks::totals(std::vector<double> of_this_rank) const {
  return train::totals(group(), std::move(of_this_rank));
}

void Ranks::require_same(const std::string& what, const std::string& text) const {
  if (are_several()) group_->require_same(what, text);
}

std::uint64_t Ranks::of_first(std::uint64_t number) const {
  if (!are_several()) return number;
  const at::Tensor sent = at::full({1}, std::bit_cast<std::int64_t>(number), at::kLong);
  group_->broadcast(sent);
  return std::bit_cast<std::uint64_t>(sent.item<std::int64_t>());
}

std::unique_ptr<distributed::DistributedDataParallel::NoSync> Ranks::hold() const {
  if (!are_several()) return nullptr;
  // It is made where it stays, for it cannot be moved. NOLINTNEXTLINE(modernize-make-unique)
  return std::unique_ptr<distributed::DistributedDataParallel::NoSync>(
      new distributed::DistributedDataParallel::NoSync(parallel_->no_sync()));
}

void Ranks::seed(std::uint64_t seed, std::int64_t step) const {
  if (!are_several()) return;
  const auto bits = data::random_bits(seed, group_->rank(), step, data::Purpose::rank);
  torch::manual_seed(std::uint64_t{bits[0]} << 32 | bits[1]);
}

}  // namespace demi::train
