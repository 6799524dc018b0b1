#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace demi::sdpa {

/// Where each document begins, and the end: AttentionOptions::cu_seqlens for `rows` of `tokens`, on
/// the CPU. Throws UsageError in the name of `where` for others. Synchronises.
std::vector<std::int64_t> document_starts(std::string_view where, const at::Tensor& cu_seqlens,
                                          std::int64_t rows, std::int64_t tokens);

}  // namespace demi::sdpa
