#pragma once

#include <sys/types.h>

namespace demi::cli {

/// Makes SIGHUP, SIGINT and SIGTERM end the program at once with 128 and the signal's number, and
/// counts SIGUSR1. A signal that is ignored already (nohup) stays so. A write beyond a file-size
/// limit fails, in place of SIGXFSZ's silent end.
void catch_signals();

/// Makes the program, while an object of it lives, only note the first such signal, so that the
/// step in progress ends and results can be written. From then on a SIGINT ends the program at
/// once: Ctrl-C was typed again. SIGTERM and SIGHUP say nothing new, since timeout, systemd and
/// Slurm may send one to a program and to its whole group or service. One at a time.
class NoteStopSignals {
 public:
  NoteStopSignals();
  ~NoteStopSignals();
  NoteStopSignals(const NoteStopSignals&) = delete;
  NoteStopSignals& operator=(const NoteStopSignals&) = delete;
};

/// The signal that was noted, or 0.
int stop_signal();

/// A process group that is killed when a SIGINT ends the program at once; 0: none.
void end_with_program(pid_t group);

/// The program begins.
void start_clock();

/// Whether training should end after this step: such a signal was noted, or `limit` minutes have
/// passed since start_clock() (--stop-after; 0: no limit).
bool asks_to_stop(double limit);

/// Number of SIGUSR1 so far: a run that sees it rise saves a checkpoint and continues.
int save_requests();

}  // namespace demi::cli
