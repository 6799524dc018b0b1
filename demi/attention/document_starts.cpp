#include "demi/attention/document_starts.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <string>

#include "demi/core/error.h"

namespace demi::sdpa {
namespace {

[[noreturn]] void refuse_starts(std::string_view where, std::string_view what,
                                const std::string& seen, const std::string& accepted) {
  refuse({.where = where,
          .what = fmt::format("cu_seqlens: {}", what),
          .seen = seen,
          .accepted = accepted});
}

void check_order(std::string_view where, const std::vector<std::int64_t>& starts,
                 std::int64_t tokens) {
  const auto falls = std::ranges::adjacent_find(starts, std::greater<>());
  if (falls != starts.end())
    refuse_starts(where, "must not fall", fmt::to_string(falls[1]),
                  fmt::format("{} or more", falls[0]));
  // All lie within the batch now, so a document that is not empty means that a row has tokens.
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    const std::int64_t begin = starts[i], end = starts[i + 1];
    if (end > begin && begin / tokens != (end - 1) / tokens)
      refuse_starts(where, "a document crosses rows of the batch",
                    fmt::format("{} to {}", begin, end),
                    fmt::format("an end at {}", (begin / tokens + 1) * tokens));
  }
}

}  // namespace

std::vector<std::int64_t> document_starts(std::string_view where, const at::Tensor& cu_seqlens,
                                          std::int64_t rows, std::int64_t tokens) {
  if (!cu_seqlens.defined()) refuse_starts(where, "no tensor", "none", "int32 or int64");
  const auto dtype = cu_seqlens.scalar_type();
  if (cu_seqlens.dim() != 1 || (dtype != at::kInt && dtype != at::kLong))
    refuse_starts(
        where, "one dimension of integers",
        fmt::format("[{}] of {}", fmt::join(cu_seqlens.sizes(), ", "), c10::toString(dtype)),
        "int32 or int64");
  const at::Tensor held = cu_seqlens.to(at::kCPU, at::kLong).contiguous();
  const auto* first = held.const_data_ptr<std::int64_t>();
  std::vector<std::int64_t> starts(first, first + held.numel());
  const std::int64_t all = rows * tokens;
  if (starts.empty() || starts.front() != 0 || starts.back() != all)
    refuse_starts(
        where, "from 0 to the number of tokens",
        starts.empty() ? "nothing" : fmt::format("{} to {}", starts.front(), starts.back()),
        fmt::format("0 to {}", all));
  check_order(where, starts, tokens);
  return starts;
}

}  // namespace demi::sdpa
