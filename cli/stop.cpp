#include "cli/stop.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "cli/exit_code.h"

namespace demi::cli {
namespace {

std::atomic<int> noted{0};
static_assert(std::atomic<int>::is_always_lock_free,
              "a signal handler may only touch lock-free atomics");

void note(int number) {
  int none = 0;
  if (!noted.compare_exchange_strong(none, number)) _exit(kStoppedBySignal + number);
}

}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int number : {SIGHUP, SIGINT, SIGTERM}) sigaction(number, &action, nullptr);
}

int stop_signal() { return noted.load(); }

}  // namespace demi::cli
