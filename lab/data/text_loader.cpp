#include "lab/data/text_loader.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "demi/data/random_bits.h"
#include "demi/data/require.h"

namespace demi::data {
namespace {

constexpr Require require_text{"data.TextLoader"};

/// Whole batches change places; a shorter one at the end stays there.
void shuffle_batches(std::vector<int64_t>& texts, int64_t batch, uint64_t seed, int64_t epoch) {
  const auto block = [&](int64_t i) { return texts.begin() + i * batch; };
  for (int64_t i = static_cast<int64_t>(texts.size()) / batch - 1; i > 0; --i) {
    const int64_t other = bounded(random_bits(seed, epoch, i, Purpose::bucket)[0], i + 1);
    if (other != i) std::swap_ranges(block(i), block(i + 1), block(other));
  }
}

}  // namespace

TextLoader::TextLoader(TextSet set, int64_t classes, TextLoaderOptions options)
    : set_(std::move(set)),
      classes_(classes),
      options_(options),
      order_(set_.size(), options.order,
             [this](const at::Tensor& texts, int64_t epoch) { return by_length(texts, epoch); }) {
  require_text(classes >= 2, "too few classes", classes, ">= 2");
  require_text(options.max_length >= 0, "max_length is negative", options.max_length,
               ">= 0 (0: all)");
  require_text(options.vocabulary_size >= 0, "vocabulary_size is negative", options.vocabulary_size,
               ">= 0 (0: all)");
  require_text(options.bucket_batches >= 1, "bucket_batches is too small", options.bucket_batches,
               ">= 1");
  if (set_.size() > 0) {
    const auto [least, most] = at::aminmax(set_.labels);
    for (const int64_t label : {least.item<int64_t>(), most.item<int64_t>()})
      require_text(label >= 0 && label < classes, "a label is out of range", label,
                   fmt::format("0 to {}", classes - 1));
  }
  require_text(set_.offsets.numel() == set_.size() + 1, "offsets and labels differ in number",
               set_.offsets.numel(), fmt::to_string(set_.size() + 1));
}

int64_t TextLoader::length(int64_t text) const {
  const int64_t* offset = set_.offsets.const_data_ptr<int64_t>() + text;
  const int64_t all = offset[1] - offset[0];
  return options_.max_length > 0 ? std::min(all, options_.max_length) : all;
}

at::Tensor TextLoader::by_length(const at::Tensor& texts, int64_t epoch) const {
  const int64_t* first = texts.const_data_ptr<int64_t>();
  std::vector<int64_t> order(first, first + texts.numel());
  if (order.empty()) return texts;
  const OrderOptions& options = options_.order;
  const int64_t total = texts.numel();
  // A factor may exceed the number of all texts.
  const auto product = [total](int64_t a, int64_t b) { return a > total / b ? total : a * b; };
  const int64_t batch = product(options.batch_size, options.world_size);
  // Texts that make no whole batch stay apart, as they were drawn: sorted with the others, the
  // longest texts would always be those that are left out.
  const int64_t sorted = options.shuffle || options.drop_last ? total / batch * batch : total;
  const int64_t bucket = options.shuffle ? product(batch, options_.bucket_batches) : total;
  for (int64_t start = 0; start < sorted; start += bucket)
    std::stable_sort(order.begin() + start, order.begin() + std::min(start + bucket, sorted),
                     [&](int64_t a, int64_t b) { return length(a) < length(b); });
  if (options.shuffle) shuffle_batches(order, batch, options.seed, epoch);
  return at::tensor(order, at::kLong);
}

Batch TextLoader::batch(int64_t epoch, int64_t position) const {
  const at::Tensor chosen = order_.indices(epoch, position);
  const int64_t rows = chosen.numel();
  const int64_t* text = chosen.const_data_ptr<int64_t>();
  at::Tensor lengths = at::empty({rows}, at::kLong);
  int64_t* row_length = lengths.mutable_data_ptr<int64_t>();
  for (int64_t row = 0; row < rows; ++row) row_length[row] = length(text[row]);
  const int64_t longest = *std::max_element(row_length, row_length + rows);
  at::Tensor tokens = at::zeros({rows, longest}, at::kLong);
  int64_t* out = tokens.mutable_data_ptr<int64_t>();
  const int32_t* all = set_.tokens.const_data_ptr<int32_t>();
  const int64_t* offset = set_.offsets.const_data_ptr<int64_t>();
  const int64_t known = options_.vocabulary_size > 0 ? options_.vocabulary_size : INT64_MAX;
  for (int64_t row = 0; row < rows; ++row, out += longest)
    std::transform(all + offset[text[row]], all + offset[text[row]] + row_length[row], out,
                   [known](int32_t id) { return id < known ? id : 0; });
  at::Tensor target = set_.labels.index_select(0, chosen);
  if (classes_ == 2) target = target.to(at::kFloat).unsqueeze(1);
  return {.input = tokens, .target = target, .lengths = lengths};
}

}  // namespace demi::data
