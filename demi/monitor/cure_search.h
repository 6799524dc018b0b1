#pragma once

#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "demi/monitor/origin.h"
#include "demi/monitor/step_graph.h"

namespace demi::monitor {

/// What has to compute in FP32 so that a batch is finite which is not: from the op at its origin
/// backwards through forward, the nearest first, then whatever ran before it.
class CureSearch {
 public:
  CureSearch(const StepGraph& graph, KeptInFp32 kept) : graph_(graph), kept_(std::move(kept)) {}

  /// The next cures, for the origin that the batch has with those before. Empty: there are none.
  std::vector<Cure> next(const Origin& origin);

 private:
  std::vector<int> ops_of(const Origin& origin) const;
  void add(int op);

  const StepGraph& graph_;
  KeptInFp32 kept_;
  std::set<int> seen_;
  std::vector<int> open_;  // ops to be cured, or looked behind
};

/// Without those that can be left out while the batch stays finite.
std::vector<Cure> without_needless(std::vector<Cure> cures,
                                   const std::function<bool(const std::vector<Cure>&)>& is_finite);

}  // namespace demi::monitor
