#include "demi/schedule/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "demi/core/error.h"
#include "demi/optim/trajectories_testing.h"

namespace demi::optim::lr {
namespace {

constexpr double kOwnRate = 0.1;

struct NamedSchedule {
  const char* name;
  Schedule schedule;
};

std::vector<NamedSchedule> schedules() {
  return {{"step", step(7, 0.5)},
          {"multi_step", multi_step({5, 11, 12}, 0.1)},
          {"exponential", exponential(0.9)},
          {"cosine", cosine(25, 0.001)},
          {"cosine_warm_restarts", cosine_warm_restarts(5, 2, 0.001)},
          {"cosine_warm_restarts_1", cosine_warm_restarts(6)},
          {"linear", linear(0.25, 1.0, 8)},
          {"polynomial", polynomial(20, 2.0)},
          {"lambda", lambda([](int64_t t) { return 1.0 / static_cast<double>(1 + t); })},
          {"sequential", sequential({linear(0.1, 1.0, 5), exponential(0.9)}, {6})},
          {"one_cycle", one_cycle({.total_steps = 40, .max_lr = 0.5})}};
}

TEST(Schedule, FollowsPyTorch) {
  for (const auto& [name, schedule] : schedules()) {
    const auto& expected = trajectories().at("schedules").at(name).at("lr");
    for (size_t t = 0; t < expected.size(); ++t)
      EXPECT_NEAR(schedule(static_cast<int64_t>(t), kOwnRate), expected[t].get<double>(), 1e-12)
          << name << " at " << t;
  }
}

TEST(Schedule, NumbersOutOfTheirRangeAreRefused) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double bad : {-1.0, inf, std::nan("")}) {
    EXPECT_THROW(step(5, bad), UsageError);
    EXPECT_THROW(multi_step({5}, bad), UsageError);
    EXPECT_THROW(exponential(bad), UsageError);
    EXPECT_THROW(cosine(5, bad), UsageError);
    EXPECT_THROW(cosine_warm_restarts(5, 1, bad), UsageError);
    EXPECT_THROW(polynomial(5, bad), UsageError);
    EXPECT_THROW(one_cycle({.total_steps = 5, .max_lr = bad}), UsageError);
    EXPECT_THROW(one_cycle_momentum({.total_steps = 5, .base_momentum = bad}), UsageError);
    EXPECT_THROW(one_cycle_momentum({.total_steps = 5, .max_momentum = bad}), UsageError);
  }
  EXPECT_EQ(polynomial(5, 0)(5, 1), 1);
}

TEST(Schedule, OneCycleTakesTheGroupsOwnRateAsPeak) {
  EXPECT_DOUBLE_EQ(one_cycle({.total_steps = 10})(2, 0.5), 0.5);
  EXPECT_THROW(one_cycle({.total_steps = 10})(11, 0.5), UsageError);
}

}  // namespace
}  // namespace demi::optim::lr
