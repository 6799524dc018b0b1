#include "cli/stop.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "cli/exit_code.h"

namespace demi::cli {
namespace {

std::atomic<bool> noting{false};
std::atomic<int> noted{0};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "a signal handler may only touch lock-free atomics");

void stop(int number) {
  int none = 0;
  if (!noting.load() || !noted.compare_exchange_strong(none, number))
    _exit(kStoppedBySignal + number);
}

}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = stop;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int number : {SIGHUP, SIGINT, SIGTERM}) {
    struct sigaction before {};
    sigaction(number, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);
  }
}

NoteStopSignals::NoteStopSignals() { noting = true; }

NoteStopSignals::~NoteStopSignals() { noting = false; }

int stop_signal() { return noted.load(); }

}  // namespace demi::cli
