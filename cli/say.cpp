#include "cli/say.h"

#include <unistd.h>

#include <cstdio>
#include <string>

#include "lab/report/terminal.h"
#include "lab/report/wrap.h"

namespace demi::cli {

void say(std::string_view kind, std::string_view text) {
  const std::string lines =
      report::message_lines(kind, text, report::Terminal::of(STDERR_FILENO).width);
  std::fwrite(lines.data(), 1, lines.size(), stderr);
  std::fflush(stderr);
}

}  // namespace demi::cli
