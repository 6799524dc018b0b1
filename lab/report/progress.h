#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>

#include "demi/core/export.h"
#include "lab/report/progress_line.h"
#include "lab/report/terminal.h"
#include "lab/report/time_left.h"

namespace demi::report {

struct ProgressOptions {
  std::chrono::duration<double> redraw =
      std::chrono::milliseconds(100);                             // on a terminal, at most once a
  std::chrono::duration<double> line = std::chrono::seconds(10);  // elsewhere, a line every
  std::function<std::chrono::duration<double>()> clock = {};      // steady_clock where empty
};

/// How far training is. On a terminal one line that is redrawn in place; elsewhere plain lines: one
/// at an epoch's start, one every `line`, one at its end. Writes only to `out`. Not thread-safe.
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

  void begin_epoch(const ProgressState& state);
  void update(const ProgressState& state);
  void end_epoch(const ProgressState& state);
  void pause();  // what passes until the next call is of another run, which may have its turn
  void message(const std::string& text);  // a line of its own, above the one that is redrawn
  void clear();  // takes the redrawn line away, before somebody else writes

 private:
  void draw(const ProgressState& state, bool keep);
  std::string erased();  // what takes the drawn line away
  std::optional<std::chrono::duration<double>> time_left(const ProgressState& state) const;

  std::ostream& out_;
  Terminal terminal_;
  ProgressOptions options_;
  TimeLeft time_left_;
  std::optional<std::chrono::duration<double>> drawn_at_;
  std::size_t drawn_width_ = 0;  // columns of the line that stands there now
};

}  // namespace demi::report
