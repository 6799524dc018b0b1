#include "demi/train/save_plan.h"

#include <ratio>
#include <utility>

namespace demi::train {

SavePlan::SavePlan(const CheckpointOptions& options, std::function<bool()> asked)
    : options_(options), asked_(std::move(asked)) {
  if (!options_.folder.empty()) writer_ = std::make_unique<checkpoint::Writer>(options_.folder);
}

bool SavePlan::is_due_after_batch(int64_t step, bool step_done) {
  if (!is_on()) return false;
  const bool asked = asked_ && asked_();  // asked once a batch, whatever else is due
  const Every& every = options_.every;
  const bool by_step = step_done && every.steps > 0 && step % every.steps == 0;
  const bool by_clock =
      step_done && every.minutes > 0 &&
      Clock::now() - last_ >= std::chrono::duration<double, std::ratio<60>>(every.minutes);
  return asked || by_step || by_clock;
}

bool SavePlan::is_due_after_epoch(int64_t epoch) const {
  return is_on() && options_.every.epochs > 0 && epoch % options_.every.epochs == 0;
}

void SavePlan::save(int64_t step, checkpoint::Checkpoint state, bool is_best) {
  if (options_.before_save) options_.before_save(state);
  const checkpoint::SaveOptions how{.keep_last = options_.keep_last, .is_best = is_best};
  if (options_.in_background)
    writer_->save(step, state, how);
  else
    checkpoint::save(writer_->folder(), step, state, how);  // without a copy in memory
  last_ = Clock::now();
}

void SavePlan::finish() {
  if (writer_) writer_->wait();
}

}  // namespace demi::train
