#include "cli/standard_streams.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "cli/exit_code.h"

namespace demi::cli {

void open_standard_streams() {
  // open() gives the lowest number that is free.
  int descriptor = -1;
  do {
    descriptor = ::open("/dev/null", O_RDWR);
  } while (descriptor >= 0 && descriptor <= STDERR_FILENO);
  if (descriptor > STDERR_FILENO) ::close(descriptor);
  ::signal(SIGPIPE, SIG_IGN);
}

int flush_results(int code) {
  std::cout.flush();
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
  if (written) return code;
  // The error may be an earlier line's; writing again reports it anew.
  errno = 0;
  const bool again = ::write(STDOUT_FILENO, "\n", 1) == 1;
  const int error = errno;
  // `demi policy | head`: nobody is there to miss the rest.
  if (!again && error == EPIPE) return code == kDone ? kStoppedBySignal + SIGPIPE : code;
  std::fprintf(stderr, "demi: the results could not be written to stdout%s%s\n", again ? "" : ": ",
               again ? "" : std::strerror(error));
  return code == kDone ? kTrainingFailed : code;
}

}  // namespace demi::cli
