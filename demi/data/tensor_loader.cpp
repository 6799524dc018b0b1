#include "demi/data/tensor_loader.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <utility>

#include "demi/core/error.h"

namespace demi::data {
namespace {

int64_t rows_of(const at::Tensor& input, const at::Tensor& target) {
  if (!input.defined() || !target.defined())
    throw UsageError(
        {.where = "data.TensorLoader",
         .what = input.defined() ? "the target is undefined" : "the input is undefined",
         .accepted = "two tensors of one first extent"});
  if (input.dim() < 1 || target.dim() < 1 || input.size(0) != target.size(0))
    throw UsageError({.where = "data.TensorLoader",
                      .what = "input and target differ in their number of rows",
                      .seen = fmt::format("{} and {}", input.dim() > 0 ? input.size(0) : 0,
                                          target.dim() > 0 ? target.size(0) : 0),
                      .accepted = "two tensors of one first extent"});
  return input.size(0);
}

}  // namespace

TensorLoader::TensorLoader(at::Tensor input, at::Tensor target, const OrderOptions& order)
    : input_(std::move(input)),
      target_(std::move(target)),
      in_order_(!order.shuffle && order.limit == 0 && order.world_size == 1),
      order_(rows_of(input_, target_), order) {
  if (!input_.is_cpu() && input_.device() == target_.device()) chosen_.emplace(input_.device());
}

Batch TensorLoader::batch(int64_t epoch, int64_t position) const {
  const at::Tensor chosen = order_.indices(epoch, position);
  if (in_order_) {
    const int64_t start = order_.batch_start(position);
    return {.input = input_.narrow(0, start, chosen.numel()),
            .target = target_.narrow(0, start, chosen.numel()),
            .lengths = {}};
  }
  const auto rows = [&](const at::Tensor& all) {
    return all.index_select(0, chosen.to(all.device(), true));
  };
  return {.input = rows(input_), .target = rows(target_), .lengths = {}};
}

at::Tensor TensorLoader::choice(int64_t epoch, int64_t position) const {
  if (!chosen_) return {};
  const int64_t count = order_.indices(epoch, position).numel();
  return chosen_->rows(epoch, order_.batch_start(position), count,
                       [this](int64_t of) { return order_.epoch_indices(of); });
}

Batch TensorLoader::chosen(const at::Tensor& choice) const {
  if (!chosen_) return Loader::chosen(choice);
  return {.input = input_.index_select(0, choice),
          .target = target_.index_select(0, choice),
          .lengths = {}};
}

SyntheticRows synthetic_rows(int64_t examples, int64_t in, int64_t out, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  at::Tensor input = at::randn({examples, in}, generator, at::kFloat);
  return {.input = std::move(input), .target = at::randn({examples, out}, generator, at::kFloat)};
}

}  // namespace demi::data
