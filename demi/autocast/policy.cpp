#include "demi/autocast/policy.h"

#include <array>
#include <atomic>

#include "demi/core/error.h"
#include "demi/core/nearest.h"

namespace demi {
namespace {

using c10::ScalarType;

struct Row {
  std::string_view name;
  ScalarType compute;
  ScalarType variable;
};

constexpr std::array<Row, 6> kRows{{{"mixed_float16", ScalarType::Half, ScalarType::Float},
                                    {"mixed_bfloat16", ScalarType::BFloat16, ScalarType::Float},
                                    {"float64", ScalarType::Double, ScalarType::Double},
                                    {"float32", ScalarType::Float, ScalarType::Float},
                                    {"float16", ScalarType::Half, ScalarType::Half},
                                    {"bfloat16", ScalarType::BFloat16, ScalarType::BFloat16}}};

std::atomic<Policy> global{Policy()};

}  // namespace

Policy::Policy(std::string_view name) {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].name != name) continue;
    row_ = static_cast<int>(i);
    return;
  }
  const auto known = names();
  refuse({.where = "autocast.Policy",
          .what = "no policy of that name",
          .seen = name,
          .advice = did_you_mean(name, known)});
}

std::string_view Policy::name() const { return kRows[row_].name; }
ScalarType Policy::compute_dtype() const { return kRows[row_].compute; }
ScalarType Policy::variable_dtype() const { return kRows[row_].variable; }

std::vector<std::string> Policy::names() {
  std::vector<std::string> result;
  result.reserve(kRows.size());
  for (const auto& row : kRows) result.emplace_back(row.name);
  return result;
}

Policy global_policy() { return global.load(); }
void set_global_policy(const Policy& policy) { global.store(policy); }
void set_global_policy(std::string_view name) { set_global_policy(Policy(name)); }

}  // namespace demi
