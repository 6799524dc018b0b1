#include "demi/train/save_plan.h"

#include <c10/util/Exception.h>

#include <ratio>
#include <utility>

#include "demi/core/error.h"

namespace demi::train {
namespace {

bool is_multiple(int64_t number, int64_t of) { return of > 0 && number % of == 0; }

}  // namespace

SavePlan::SavePlan(const CheckpointOptions& options, std::function<bool()> asked)
    : options_(options), asked_(std::move(asked)) {
  if (!options_.folder.empty()) writer_ = std::make_unique<checkpoint::Writer>(options_.folder);
}

bool SavePlan::is_due_after_batch(int64_t step, bool step_done) {
  if (!is_on()) return false;
  if (!writer_->is_writing()) join();
  const bool asked = asked_ && asked_();  // asked once a batch, whatever else is due
  const Every& every = options_.every;
  const Clock::time_point at = now();
  const bool by_step =
      step_done && (is_multiple(step, every.steps) || is_multiple(step, options_.keep_every.steps));
  const bool by_clock = step_done && every.minutes > 0 &&
                        at - last_ >= std::chrono::duration<double, std::ratio<60>>(every.minutes);
  const bool again = step_done && failure_ &&
                     at - failed_ >= std::chrono::duration<double>(options_.retry_seconds);
  return asked || by_step || by_clock || again;
}

bool SavePlan::is_due_after_epoch(int64_t epoch) const {
  return is_on() && (is_multiple(epoch, options_.every.epochs) ||
                     is_multiple(epoch, options_.keep_every.epochs));
}

bool SavePlan::save(int64_t step, checkpoint::Checkpoint state, checkpoint::SaveOptions how) {
  join();  // Writer::save would throw why the one before failed in place of saving this one
  step_ = step;
  how.keep_last = options_.keep_last;
  const bool is_saved = goes_on_after([&] { write(std::move(state), how); });
  last_ = now();  // of a failed one, too: it is tried again by retry_seconds
  return is_saved;
}

void SavePlan::write(checkpoint::Checkpoint state, const checkpoint::SaveOptions& how) {
  if (options_.before_save) options_.before_save(state);
  if (options_.in_background) {
    writer_->save(step_, state, how);
    failed_ = now();  // a write in progress is not tried again meanwhile
    is_pending_ = true;
  } else {
    checkpoint::save(writer_->folder(), step_, state, how);  // without a copy in memory
    failure_ = nullptr;
  }
}

void SavePlan::join() {
  if (!std::exchange(is_pending_, false)) return;
  goes_on_after([this] {
    writer_->wait();
    failure_ = nullptr;
  });
}

bool SavePlan::is_written() {
  if (writer_) join();
  return !failure_;
}

// Warns once an outage. The step makes the text differ from that of the outage before.
bool SavePlan::goes_on_after(const std::function<void()>& saving) try {
  saving();
  return true;
} catch (const TrainingError& error) {
  if (options_.retry_seconds == 0) throw;
  if (!std::exchange(failure_, std::current_exception())) {
    TORCH_WARN("[train.Trainer] the checkpoint of step ", step_,
               " could not be saved, and training goes on; a save is tried again after ",
               options_.retry_seconds, " s and whenever one is due: ", error.what());
  }
  failed_ = now();
  return false;
}

void SavePlan::finish() {
  if (!writer_) return;
  const bool was_pending = std::exchange(is_pending_, false);
  writer_->wait();
  if (was_pending) failure_ = nullptr;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace demi::train
