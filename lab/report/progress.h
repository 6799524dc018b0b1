#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>

#include "demi/core/export.h"
#include "lab/report/terminal.h"

namespace demi::report {

/// The time that is left, from an exponential mean of the seconds of a step: steps older than
/// `memory` have less than a third of the weight. Pauses between epochs are left out by `pause`.
/// Steps that are reported at once, after a wait for the last of them, share that wait.
class DEMI_API TimeLeft {
 public:
  /// Times, since any moment that stays the same.
  using Seconds = std::chrono::duration<double>;
  explicit TimeLeft(Seconds memory = std::chrono::seconds(20)) : memory_(memory) {}
  void pause();
  /// Records that so many steps are done at this time.
  void at(std::int64_t steps_done, Seconds now);
  /// The time left for so many steps more; nullopt before the first is known.
  std::optional<Seconds> left(std::int64_t steps_to_go) const;

 private:
  struct Point {
    std::int64_t steps;
    Seconds time;
  };
  /// A wait and the steps reported right after it; counted at the end of the next wait.
  struct Burst {
    Point before, first, last;
  };
  struct Rate {
    double seconds = 0, steps = 0;  // fading sums
  };
  Rate with(const Burst& burst) const;

  Seconds memory_;
  std::optional<Point> last_;
  std::optional<Burst> open_;
  Rate rate_;
};

/// Progress of a run. Empty fields are unknown and not shown.
struct ProgressState {
  std::string run;     // "bf16"; "" if there is only one
  std::string phase;   // "evaluating", "training" and "test" at an epoch's end; "" while training
  std::string remark;  // behind the figures: "saved as the best"
  int epoch = 1;       // from 1
  int epochs = 1;      // in all
  std::int64_t step = 0;                   // done in this epoch
  std::int64_t steps = 0;                  // of this epoch; 0: not known
  std::int64_t last_step = 0;              // of all epochs, at which training ends; 0: theirs
  std::optional<double> loss, accuracy;    // accuracy: 0 to 1
  std::optional<std::int64_t> correct;     // of `examples`
  std::int64_t examples = 0;               // that loss and accuracy are of
  std::optional<double> learning_rate;     // of the step
  std::optional<double> loss_scale;        // a scaler's; empty without one
  std::optional<double> items_per_second;  // since the last report
  std::string items = "images";            // what the figure above counts: "tokens"
  std::optional<double> share_of_peak;     // of the machine's FLOPs, that the model's take
  std::optional<double> memory_bytes;      // peak
};

/// The progress line, at most `width` columns wide (0: no limit): what matters least goes first.
DEMI_API std::string progress_line(const ProgressState& state,
                                   std::optional<std::chrono::duration<double>> left,
                                   std::size_t width, bool utf8, bool colour, bool bar);

/// The intervals at which progress is shown.
struct ProgressOptions {
  /// Times, since any moment that stays the same.
  using Seconds = std::chrono::duration<double>;
  Seconds redraw = std::chrono::milliseconds(100);  // the least time between two, on a terminal
  Seconds line = std::chrono::seconds(10);          // between two lines elsewhere
  std::function<Seconds()> clock = {};              // steady_clock where empty
};

/// Shows the progress of training. On a terminal one line that is redrawn in place; elsewhere plain
/// lines: one at an epoch's start, one every `line`, one at its end. Writes only to `out`. Not
/// thread-safe.
///
///     report::Progress progress(std::cerr, report::Terminal::of(STDERR_FILENO));
///     progress.begin_epoch(state);
///     while (...) progress.update(state);
///     progress.end_epoch(state);          // leaves a finished line behind
class DEMI_API Progress {
 public:
  Progress(std::ostream& out, Terminal terminal, ProgressOptions options = {});
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();  // `clear`

  /// An epoch begins: elsewhere than on a terminal a line.
  void begin_epoch(const ProgressState& state);
  /// A step was taken. Draws if it is time to.
  void update(const ProgressState& state);
  /// An epoch has ended: leaves a finished line behind.
  void end_epoch(const ProgressState& state);
  void pause();  // what passes until the next call is of another run, which may have its turn
  void message(const std::string& text);  // a line of its own, above the one that is redrawn
  void clear();  // takes the redrawn line away, before another part of the program writes

 private:
  void draw(const ProgressState& state, bool keep);
  std::string erased();  // what takes the drawn line away
  std::optional<std::chrono::duration<double>> time_left(const ProgressState& state) const;

  std::ostream& out_;
  Terminal terminal_;
  ProgressOptions options_;
  TimeLeft time_left_;
  std::optional<std::chrono::duration<double>> drawn_at_;
  std::size_t drawn_width_ = 0;  // columns of the line that is there now
};

}  // namespace demi::report
