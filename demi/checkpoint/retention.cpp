#include "demi/checkpoint/retention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <utility>

#include "demi/checkpoint/folder.h"

namespace demi::checkpoint {
namespace {

/// The newest copy of each step whose marks satisfy has(), sorted by step.
template <class Has>
std::vector<std::string> newest_copies(const std::vector<std::string>& standing,
                                       const std::map<std::string, Marks>& marks, const Has& has) {
  std::set<int64_t> steps;
  std::vector<std::string> names;
  for (auto name = standing.rbegin(); name != standing.rend(); ++name) {
    const auto found = marks.find(*name);
    if (found == marks.end() || !has(found->second)) continue;
    if (steps.insert(parse_checkpoint_name(*name)->step).second) names.push_back(*name);
  }
  std::ranges::reverse(names);
  return names;
}

std::vector<std::string> best(const std::vector<std::string>& standing,
                              const std::map<std::string, Marks>& marks, const KeepBest& rule) {
  const auto score = [&](const Marks& one) {
    const auto found = one.scores.find(rule.by);
    const double value = found == one.scores.end() ? std::nan("") : found->second;
    return rule.lowest_best ? -value : value;
  };
  std::vector<std::string> names =
      newest_copies(standing, marks, [&](const Marks& one) { return !std::isnan(score(one)); });
  std::ranges::stable_sort(names, std::greater<>(),
                           [&](const std::string& name) { return score(marks.at(name)); });
  names.resize(std::min(names.size(), static_cast<std::size_t>(rule.count)));
  return names;
}

}  // namespace

std::vector<std::string> kept_by_marks(const std::vector<std::string>& standing,
                                       const std::map<std::string, Marks>& marks,
                                       const KeepBest& rule) {
  std::vector<std::string> names =
      newest_copies(standing, marks, [](const Marks& one) { return one.keep; });
  for (std::string& name : best(standing, marks, rule)) names.push_back(std::move(name));
  return names;
}

}  // namespace demi::checkpoint
