#pragma once

#include <string>

#include "demi/core/export.h"

namespace demi::profiler {

/// Captures the process's standard output from construction to `text`, in a file in memory. All
/// threads; one at a time.
class DEMI_API CapturedOutput {
 public:
  /// Captures nothing if the system has no such file: output then goes where it went.
  CapturedOutput();
  ~CapturedOutput();
  CapturedOutput(const CapturedOutput&) = delete;
  CapturedOutput& operator=(const CapturedOutput&) = delete;

  bool is_open() const { return before_ >= 0; }

  /// Restores the standard output. Returns what was written, up to 64 MB.
  std::string text();

 private:
  void give_back();

  int before_ = -1, file_ = -1;  // descriptors
};

}  // namespace demi::profiler
