#pragma once

#include <vector>

#include "demi/attention/path.h"
#include "demi/attention/problem.h"

namespace demi::sdpa {

/// A problem that may consist of documents: `starts` holds where each begins among the N T tokens,
/// and N T; empty: one for each row.
struct Documents {
  Problem all;
  std::vector<std::int64_t> starts;
};

/// (N, H, T, F) in q's dtype, with one node in the graph. No dimension is 0. `path` is not
/// libtorch; where tiles cannot do it the fused kernel runs, and where that cannot, blocks.
at::Tensor differentiable(const Documents& documents, Path path);

}  // namespace demi::sdpa
