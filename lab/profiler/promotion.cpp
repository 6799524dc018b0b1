#include "lab/profiler/promotion.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include <cstddef>
#include <set>

#include "lab/profiler/summary.h"

namespace demi::profiler {
namespace {

std::set<std::string> pointwise_ops() {
  std::set<std::string> names;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (op && op->hasTag(at::Tag::pointwise)) names.insert(name.name);
  }
  return names;
}

std::string widest_of(const std::set<std::string>& dtypes) {
  if (dtypes.contains("fp64")) return "fp64";
  if (dtypes.contains("fp32") || dtypes.size() > 1) return "fp32";
  return dtypes.empty() ? "" : *dtypes.begin();
}

}  // namespace

bool promotes(const std::string& op) {
  static const std::set<std::string> all = pointwise_ops();
  return all.contains(op);
}

std::string promoted(const Event& event) {
  std::set<std::string> with_dimensions, all;
  for (std::size_t i = 0; i < event.dtypes.size(); ++i) {
    const std::string name = dtype_of(event.dtypes[i]);
    if (name.empty()) continue;
    all.insert(name);
    if (i < event.shapes.size() && !event.shapes[i].empty()) with_dimensions.insert(name);
  }
  return widest_of(with_dimensions.empty() ? all : with_dimensions);
}

}  // namespace demi::profiler
