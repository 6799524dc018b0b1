#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace demi::sdpa {

/// The first token of each document, and the end: AttentionOptions::cu_seqlens for `rows` of
/// `tokens`, on the CPU. Throws UsageError in the name of `where` if they do not fit. Synchronises.
std::vector<std::int64_t> document_starts(std::string_view where, const at::Tensor& cu_seqlens,
                                          std::int64_t rows, std::int64_t tokens);

}  // namespace demi::sdpa
