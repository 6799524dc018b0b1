#include "demi/data/dataset_loader.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <limits>

#include "demi/core/error.h"

namespace demi::data {

at::Tensor stack_examples(const std::vector<at::Tensor>& examples, std::string_view part) {
  constexpr std::string_view kWhere = "data.stack_examples";
  if (examples.empty())
    throw UsageError({.where = kWhere, .what = "no examples", .accepted = "one or more tensors"});
  const at::Tensor& first = examples.front();
  for (const at::Tensor& one : examples) {
    if (!one.defined() || !first.defined())
      throw UsageError({.where = kWhere,
                        .what = fmt::format("the {} of a batch have an undefined tensor", part),
                        .accepted = "tensors of one shape and dtype"});
    if (one.sizes() != first.sizes() || one.scalar_type() != first.scalar_type())
      throw UsageError(
          {.where = kWhere,
           .what = fmt::format("the {} of a batch differ", part),
           .seen = c10::str(first.scalar_type(), " ", first.sizes(), " and ", one.scalar_type(),
                            " ", one.sizes()),
           .accepted = "tensors of one shape and dtype",
           .advice = "let a transform of yours make a demi::data::Batch of them, padded, with "
                     "their lengths"});
  }
  return at::stack(examples);
}

int64_t size_of_dataset(std::optional<std::size_t> size) {
  if (size && *size <= static_cast<std::size_t>(std::numeric_limits<int64_t>::max()))
    return static_cast<int64_t>(*size);
  throw UsageError({.where = "data.DatasetLoader",
                    .what = "the dataset does not say its size",
                    .seen = "size() without a value",
                    .accepted = "a dataset whose size() is known before training",
                    .advice = "torch::data::make_data_loader takes it, for a loop of yours"});
}

}  // namespace demi::data
