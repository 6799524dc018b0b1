#include "demi/train/ranks.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <torch/utils.h>

#include <bit>
#include <utility>

#include "demi/data/random_bits.h"

namespace demi::train {

Ranks::Ranks(torch::nn::Module& module, std::shared_ptr<distributed::ProcessGroup> group,
             const distributed::DistributedOptions& options, std::vector<at::Tensor> more)
    : compares_weights_(options.compare_weights) {
  if (!group || group->world_size() == 1) return;
  group_ = std::move(group);
  parallel_ = std::make_unique<distributed::DistributedDataParallel>(module, *group_, options,
                                                                     std::move(more));
}

namespace {

// A collective that fails may still write to the tensor, so the tensor owns its memory.
at::Tensor tensor_of(std::vector<double>& numbers) {
  return at::from_blob(numbers.data(), {static_cast<std::int64_t>(numbers.size())}, at::kDouble)
      .clone();
}

std::vector<double> numbers_of(const at::Tensor& tensor) {
  const auto* number = tensor.const_data_ptr<double>();
  return {number, number + tensor.numel()};
}

}  // namespace

std::vector<double> totals(distributed::ProcessGroup* group, std::vector<double> of_this_rank) {
  if (!group || group->world_size() == 1) return of_this_rank;
  const at::Tensor sums = tensor_of(of_this_rank);
  group->all_reduce(sums);
  return numbers_of(sums);
}

// The totals, not compared over the ranks, since each step asks for them.
std::vector<double> Ranks::totals(std::vector<double> of_this_rank) const {
  if (!are_several()) return of_this_rank;
  const at::Tensor sums = tensor_of(of_this_rank);
  group_->start_all_reduce(sums).wait();
  return numbers_of(sums);
}

void Ranks::require_same(const std::string& what, const std::string& text) const {
  if (are_several()) group_->require_same(what, text);
}

void Ranks::require_same_weights(const std::string& when, const std::string& more) const {
  if (are_several() && compares_weights_)
    group_->require_same("the weights and learning rates " + when, more + parallel_->checksums());
}

std::int64_t Ranks::greatest(std::int64_t number) const {
  if (!are_several()) return number;
  const at::Tensor sent = at::full({1}, number, at::kLong);
  group_->all_reduce(sent, distributed::Reduction::kMax);
  return sent.item<std::int64_t>();
}

std::uint64_t Ranks::of_first(std::uint64_t number) const {
  if (!are_several()) return number;
  const at::Tensor sent = at::full({1}, std::bit_cast<std::int64_t>(number), at::kLong);
  group_->start_broadcast(sent, 0).wait();
  return std::bit_cast<std::uint64_t>(sent.item<std::int64_t>());
}

void Ranks::seed(std::uint64_t seed, std::int64_t step) const {
  if (!are_several()) return;
  const auto bits = data::random_bits(seed, group_->rank(), step, data::Purpose::rank);
  torch::manual_seed(std::uint64_t{bits[0]} << 32 | bits[1]);
}

}  // namespace demi::train
