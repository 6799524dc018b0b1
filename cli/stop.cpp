#include "cli/stop.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

#include "cli/exit_code.h"

namespace demi::cli {
namespace {

using Clock = std::chrono::steady_clock;
Clock::time_point began;

std::atomic<bool> noting{false};
std::atomic<int> noted{0};
std::atomic<int> saves_asked{0};
std::atomic<pid_t> followers{0};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "a signal handler may only touch lock-free atomics");

void stop(int number) {
  int none = 0;
  if (noting.load() && noted.compare_exchange_strong(none, number)) return;
  if (noted.load() != 0 && number != SIGINT) return;
  if (const pid_t group = followers.load()) kill(-group, SIGKILL);
  _exit(kStoppedBySignal + number);
}

void ask_for_save(int) { ++saves_asked; }

// Except if it is ignored already (nohup).
void handle(int number, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  struct sigaction before {};
  sigaction(number, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);
}

}  // namespace

void catch_signals() {
  for (const int number : {SIGHUP, SIGINT, SIGTERM}) handle(number, stop);
  handle(SIGUSR1, ask_for_save);
  // cli/wait_policy.cpp has blocked it until here, where it would have ended the program.
  sigset_t asks_for_save;
  sigemptyset(&asks_for_save);
  sigaddset(&asks_for_save, SIGUSR1);
  sigprocmask(SIG_UNBLOCK, &asks_for_save, nullptr);
  // A write to a file that would exceed a limit (ulimit -f) fails, and the run reports it.
  signal(SIGXFSZ, SIG_IGN);
}

NoteStopSignals::NoteStopSignals() { noting = true; }

NoteStopSignals::~NoteStopSignals() { noting = false; }

void end_with_program(pid_t group) { followers = group; }

void start_clock() { began = Clock::now(); }

int stop_signal() { return noted.load(); }

bool asks_to_stop(double limit) {
  const std::chrono::duration<double, std::ratio<60>> minutes = Clock::now() - began;
  return stop_signal() != 0 || (limit > 0 && minutes.count() >= limit);
}

int save_requests() { return saves_asked.load(); }

}  // namespace demi::cli
