#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "lab/report/terminal.h"

namespace demi::cli {

/// Shows progress on stderr: on a terminal one line that is overwritten, elsewhere a line each
/// time.
class StatusLine {
 public:
  bool is_interactive() const { return terminal_.interactive; }

  void show(std::string_view words, bool is_last) const;
  void clear() const;  // on a terminal takes the line away

 private:
  report::Terminal terminal_ = report::Terminal::of(STDERR_FILENO);
};

/// Shows the progress of a measurement (bench::OnPart): on a terminal a line that is erased at the
/// end, elsewhere a line every ten seconds at most.
class PartProgress {
 public:
  void operator()(const std::string& part, int64_t done, int64_t parts);

 private:
  StatusLine line_;
  std::chrono::steady_clock::time_point shown_ = std::chrono::steady_clock::now();
};

}  // namespace demi::cli
