#include "lab/settings/schedules.h"

#include <algorithm>
#include <vector>

#include "lab/find_by_name.h"

namespace demi::settings {
namespace {

optim::lr::OneCycleOptions cycle(const Config& config, int64_t steps) {
  return {.total_steps = steps, .max_lr = config.lr};
}

optim::lr::Schedule one_cycle_rate(const Config& config, int64_t steps, int64_t) {
  return optim::lr::one_cycle(cycle(config, steps));
}

optim::lr::Schedule one_cycle_momentum(const Config& config, int64_t steps) {
  return optim::lr::one_cycle_momentum(cycle(config, steps));
}

optim::lr::Schedule linear_rate(const Config& config, int64_t steps, int64_t) {
  return [rule = optim::lr::polynomial(steps), least = config.min_lr](int64_t step, double base) {
    return least + rule(step, base - least);
  };
}

// The cosine by epochs: the rate stays the same for a whole epoch.
optim::lr::Schedule cosine_rate(const Config& config, int64_t steps, int64_t steps_per_epoch) {
  const int64_t epochs = (steps - 1) / steps_per_epoch + 1;
  return [rule = optim::lr::cosine(epochs, config.min_lr), steps_per_epoch](
             int64_t step, double base) { return rule(step / steps_per_epoch, base); };
}

// The cosine by steps. Past its end the least rate stays, where optim::lr::cosine rises again.
optim::lr::Schedule cosine_by_step_rate(const Config& config, int64_t steps, int64_t) {
  return [rule = optim::lr::cosine(steps, config.min_lr), steps](int64_t step, double base) {
    return rule(std::min(step, steps), base);
  };
}

}  // namespace

std::span<const ScheduleKind> schedule_kinds() {
  static const std::vector<ScheduleKind> all{
      {.name = "constant", .effect = "", .ends = false},
      {.name = "one-cycle",
       .effect = "",
       .ends = true,
       .has_warmup = true,
       .rate = one_cycle_rate,
       .momentum = one_cycle_momentum},
      {.name = "linear",
       .effect = "to --min-lr by step",
       .ends = true,
       .has_least = true,
       .rate = linear_rate},
      {.name = "cosine",
       .effect = "to --min-lr by epoch",
       .ends = true,
       .has_least = true,
       .by_epoch = true,
       .rate = cosine_rate},
      {.name = "cosine-by-step",
       .effect = "to --min-lr by step",
       .ends = true,
       .has_least = true,
       .rate = cosine_by_step_rate},
  };
  return all;
}

const ScheduleKind& find_schedule(std::string_view name) {
  return lab::find_by_name(schedule_kinds(), name, "settings.find_schedule", "no such schedule");
}

}  // namespace demi::settings
