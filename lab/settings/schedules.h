#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "demi/core/export.h"
#include "demi/schedule/lr_schedule.h"
#include "lab/settings/config.h"

namespace demi::settings {

/// A learning rate schedule that a config can name. The settings, their help, check and
/// make_schedule all read the one list.
struct ScheduleKind {
  std::string name;         // as `--schedule` names it
  std::string effect;       // what it does to the rate, for help; "" if the name says it
  bool ends;                // made for a number of epochs, past which there is no training
  bool has_warmup = false;  // rises by itself: a warm-up of the config is refused
  bool has_least = false;   // ends at Config::min_lr
  bool by_epoch = false;    // one rate for a whole epoch: Config::schedule_steps is refused
  /// The rate in the `steps` steps after the warm-up; null: it stays.
  optim::lr::Schedule (*rate)(const Config& config, int64_t steps,
                              int64_t steps_per_epoch) = nullptr;
  /// Momentum or beta1 in the same steps; null: it stays.
  optim::lr::Schedule (*momentum)(const Config& config, int64_t steps) = nullptr;
};

/// All schedules, in the order in which help shows them.
DEMI_API std::span<const ScheduleKind> schedule_kinds();

/// Throws UsageError with the nearest right name.
DEMI_API const ScheduleKind& find_schedule(std::string_view name);

}  // namespace demi::settings
