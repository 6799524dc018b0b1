#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lab/models/gpt.h"

namespace demi::huggingface {

/// A tensor of demi::models::GPT, and those of transformers' model that it is made of.
struct TensorNames {
  std::string own;
  std::vector<std::string> theirs;  // without the prefix; several: one below the other
  std::vector<int64_t> rows;        // of each of theirs
  std::vector<int64_t> more = {};   // further sizes
  bool is_transposed = false;       // GPT-2's linear layers are Conv1D: (in, out)

  std::vector<int64_t> shape_of_theirs(std::size_t part) const;
};

/// The names of all tensors of a model, in its order; the head's only if it has one of its own.
std::vector<TensorNames> tensor_names(const models::GPTOptions& options);

/// The prefix of all names but the head's: "transformer." or "model.".
std::string_view prefix_of(models::GPTForm form);

constexpr std::string_view kHead = "lm_head.weight";

/// Tensors of files that are no weights: the causal mask of GPT-2's attention, rotary frequencies.
/// `name` without the prefix.
bool is_buffer(std::string_view name);

}  // namespace demi::huggingface
