#pragma once

#include <exception>

namespace demi::cli {

/// Exit codes, on which scripts can rely.
enum ExitCode : int {
  kDone = 0,
  kTrainingFailed = 1,
  kUsage = 2,
  kData = 3,
  kDevice = 4,
  kTimeIsOver = 75,        // --stop-after: sysexits.h's "try again later"
  kStoppedBySignal = 128,  // plus the signal's number: 129 SIGHUP, 130 SIGINT, 143 SIGTERM
};

/// Thrown by a command that has already reported what happened.
struct Exit {
  int code;
};

/// Prints what the exception says to stderr, without LibTorch's stack of C++ frames unless
/// DEMI_DEBUG is 1, and returns the exit code for it.
int report_failure(const std::exception& error);

}  // namespace demi::cli
