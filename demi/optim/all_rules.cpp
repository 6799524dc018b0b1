#include <c10/util/Type.h>

#include <algorithm>
#include <typeinfo>

#include "demi/core/error.h"
#include "demi/optim/all.h"
#include "demi/optim/rule.h"
#include "demi/optim/rule_options.h"

namespace demi::optim {

std::span<const Rule* const> all_rules() {
  static const Rules all{
#define DEMI_RULE_ENTRY(name, Name) &Name##Options::rule(),
#include "demi/kernels/rules/entries.h"
  };
  return all;
}

const Rule& rule_of(const OptimizerOptions& options) {
  if (const auto* ours = dynamic_cast<const OptionsOfRule*>(&options)) return ours->its_rule();
  std::string accepted;
  for (const Rule* rule : all_rules()) {
    if (rule->from_libtorch(options)) return *rule;
    accepted += (accepted.empty() ? "" : ", ") + rule->accepted;
  }
  refuse({.where = "optim.MultiOptimizer",
          .what = "the options of a parameter group name no rule of demi's",
          .seen = c10::demangle(typeid(options).name()),
          .accepted = accepted});
}

std::string name_of(const Rules& of_groups) {
  const auto differs = [&](const Rule* rule) { return rule != of_groups.front(); };
  if (std::ranges::none_of(of_groups, differs)) return of_groups.front()->name;
  std::string names;
  for (const Rule* rule : of_groups) names += (names.empty() ? "" : ", ") + rule->name;
  return names;
}

}  // namespace demi::optim
