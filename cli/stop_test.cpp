#include "cli/stop.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>

#include "demi/core/wait_until_testing.h"

namespace demi::cli {
namespace {

// The exit code of a process that does this, or 0 minus the signal that killed it. The signals are
// the process's own: raise() returns after the handler has.
int code_of(const std::function<void()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    work();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void expect(bool holds, int code) {
  if (!holds) _exit(code);
}

// POSIX: a shell says 128 and the signal's number of a process that a signal has ended.
TEST(Stop, ASignalEndsTheProgramAtOnce) {
  for (const int number : {SIGHUP, SIGINT, SIGTERM})
    EXPECT_EQ(code_of([&] {
                catch_signals();
                raise(number);
              }),
              128 + number);
}

TEST(Stop, TheFirstSignalIsNotedAndCtrlCThenEndsTheProgram) {
  EXPECT_EQ(code_of([] {
              catch_signals();
              const NoteStopSignals note;
              expect(stop_signal() == 0, 1);
              raise(SIGHUP);
              expect(stop_signal() == SIGHUP, 2);
            }),
            0);
  EXPECT_EQ(code_of([] {
              catch_signals();
              const NoteStopSignals note;
              raise(SIGTERM);
              raise(SIGINT);
            }),
            128 + SIGINT);
}

// timeout and systemd may signal a program, and then its whole group.
TEST(Stop, ASecondSignalThatNobodyTypedChangesNothing) {
  EXPECT_EQ(code_of([] {
              catch_signals();
              {
                const NoteStopSignals note;
                for (const int number : {SIGINT, SIGTERM, SIGTERM, SIGHUP, SIGHUP}) raise(number);
                expect(stop_signal() == SIGINT, 1);
              }
              raise(SIGTERM);  // while the program says how to go on
              expect(stop_signal() == SIGINT, 2);
            }),
            0);
}

TEST(Stop, AGroupEndsWithTheProgram) {
  const pid_t follower = fork();
  if (follower == 0) {
    setpgid(0, 0);
    while (true) pause();
  }
  setpgid(follower, 0);
  EXPECT_EQ(code_of([&] {
              catch_signals();
              const NoteStopSignals note;
              end_with_program(follower);
              raise(SIGINT);
              expect(kill(follower, 0) == 0, 1);
              raise(SIGINT);
            }),
            128 + SIGINT);
  int status = 0;
  waitpid(follower, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
}

// What was noted stays known, and the next signal is not noted any more.
TEST(Stop, AfterwardsASignalEndsTheProgramAgain) {
  EXPECT_EQ(code_of([] {
              catch_signals();
              { const NoteStopSignals note; }
              raise(SIGINT);
            }),
            128 + SIGINT);
  EXPECT_EQ(code_of([] {
              catch_signals();
              {
                const NoteStopSignals note;
                raise(SIGTERM);
              }
              expect(stop_signal() == SIGTERM, 1);
            }),
            0);
}

TEST(Stop, RequestsForACheckpointAreCounted) {
  EXPECT_EQ(code_of([] {
              catch_signals();
              expect(save_requests() == 0, 1);
              raise(SIGUSR1);
              expect(save_requests() == 1, 2);
              raise(SIGUSR1);
              expect(save_requests() == 2, 3);
              expect(stop_signal() == 0, 4);
            }),
            0);
}

// nohup ignores SIGHUP.
TEST(Stop, WhatIsIgnoredStaysIgnored) {
  EXPECT_EQ(code_of([] {
              for (const int number : {SIGHUP, SIGINT, SIGTERM, SIGUSR1}) signal(number, SIG_IGN);
              catch_signals();
              for (const int number : {SIGHUP, SIGINT, SIGTERM, SIGUSR1}) raise(number);
              expect(save_requests() == 0, 1);
              expect(stop_signal() == 0, 2);
            }),
            0);
}

// What the kernel says of a process: "S (sleeping)" of State.
std::string status_of(pid_t process, const std::string& name) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(name + ":\t")) return line.substr(name.size() + 2);
  return "";
}

bool sleeps(pid_t process) { return status_of(process, "State").starts_with("S"); }

// A read that waits goes on after a signal that is only noted.
TEST(Stop, ASignalThatIsNotedInterruptsNoSystemCall) {
  EXPECT_EQ(code_of([] {
              catch_signals();
              const NoteStopSignals note;
              int ends[2];
              expect(pipe(ends) == 0, 1);
              const pid_t parent = getpid(), helper = fork();
              if (helper == 0) {
                expect(wait_until([&] { return sleeps(parent); }), 4);
                kill(parent, SIGINT);
                const std::string none(16, '0');
                expect(wait_until([&] { return status_of(parent, "ShdPnd") == none; }), 5);
                expect(wait_until([&] { return sleeps(parent); }), 6);
                _exit(write(ends[1], "x", 1) == 1 ? 0 : 1);
              }
              char letter = 0;
              expect(read(ends[0], &letter, 1) == 1 && letter == 'x', 2);
              expect(stop_signal() == SIGINT, 3);
              int status = 0;
              waitpid(helper, &status, 0);
              expect(status == 0, 7);
            }),
            0);
}

}  // namespace
}  // namespace demi::cli
