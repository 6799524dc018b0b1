#pragma once

namespace demi::cli {

/// From now on SIGHUP, SIGINT or SIGTERM ends the program at once with 128 and its number, and
/// SIGUSR1 is counted; except if one is ignored already (nohup). A write beyond a file-size limit
/// fails, in place of SIGXFSZ's end without a word.
void catch_signals();

/// While one lives, the first such signal is only noted, so that the step in progress ends and what
/// there is can be written; a second one ends the program at once. One at a time.
class NoteStopSignals {
 public:
  NoteStopSignals();
  ~NoteStopSignals();
  NoteStopSignals(const NoteStopSignals&) = delete;
  NoteStopSignals& operator=(const NoteStopSignals&) = delete;
};

/// The signal that was noted, or 0.
int stop_signal();

/// The program begins.
void start_clock();

/// Whether training should end after this step: such a signal was noted, or `limit` minutes have
/// passed since start_clock() (--stop-after; 0: no limit).
bool asks_to_stop(double limit);

/// How often SIGUSR1 came: a run that sees the number rise saves a checkpoint and continues.
int save_requests();

}  // namespace demi::cli
