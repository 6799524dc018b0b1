#include "demi/monitor/cure_search.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

namespace demi::monitor {
namespace {

// "mul" of "aten::mul" and "mul.Tensor".
std::string_view base_of(std::string_view op) {
  if (op.starts_with("aten::")) op.remove_prefix(6);
  return op.substr(0, op.find('.'));
}

}  // namespace

void CureSearch::add(int op) {
  if (op >= 0 && seen_.insert(op).second) open_.push_back(op);
}

// Of that name and layer; of the layer, if that is all that is known.
std::vector<int> CureSearch::ops_of(const Origin& origin) const {
  const std::string_view wanted = base_of(origin.forward_op);
  std::vector<int> found, of_layer;
  for (int i = 0; const StepGraph::Op& op : graph_.ops) {
    if (op.layer == origin.name) of_layer.push_back(i);
    if (op.layer == origin.name && (base_of(op.outer) == wanted || base_of(op.name) == wanted))
      found.push_back(i);
    ++i;
  }
  return found.empty() ? of_layer : found;
}

std::vector<Cure> CureSearch::next(const Origin& origin) {
  for (const int op : ops_of(origin)) add(op);
  std::vector<Cure> cures;
  while (cures.empty()) {
    if (open_.empty()) {
      // What gives a tensor its dtype need not be among its inputs.
      const int before = seen_.empty() ? static_cast<int>(graph_.ops.size()) : *seen_.begin();
      add(before - 1);
      if (open_.empty()) return {};
    }
    std::vector<int> behind;
    for (const int i : std::exchange(open_, {})) {
      if (const auto cure = cure_of_op(graph_, with(kept_, cures), i)) cures.push_back(*cure);
      for (const int value : graph_.ops[static_cast<std::size_t>(i)].inputs)
        behind.push_back(graph_.values[static_cast<std::size_t>(value)].producer);
    }
    for (const int i : behind) add(i);
  }
  kept_ = with(kept_, cures);
  return cures;
}

std::vector<Cure> without_needless(std::vector<Cure> cures,
                                   const std::function<bool(const std::vector<Cure>&)>& is_finite) {
  for (std::size_t i = 0; i < cures.size();) {
    std::vector<Cure> others = cures;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    is_finite(others) ? void(cures = std::move(others)) : void(++i);
  }
  return cures;
}

}  // namespace demi::monitor
