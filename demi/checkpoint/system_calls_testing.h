#pragma once

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <iterator>
#include <vector>

namespace demi::checkpoint {

/// A change of one system call of another process, for tests.
struct Intervention {
  enum class Kind {
    none,         // the calls are counted
    fail,         // it does nothing and returns `error`
    shorten,      // a read or write handles half of its bytes
    kill_before,  // the process is killed instead
    kill_after,   // the process is killed when the call is done
  };
  Kind kind = Kind::none;
  int64_t at = 0;  // which call, from 1
  int error = 0;
};

struct Ended {
  bool supported = true;       // false where processes may not be traced, on other processors
  std::vector<int64_t> calls;  // numbers of the work's system calls, SYS_...
  int64_t number = -1;         // of the call that was meddled with
  int status = 0;              // as of waitpid
};

#if defined(__linux__) && defined(__x86_64__)

/// A forked process that stops at the begin and the end of each system call.
class TracedProcess {
 public:
  explicit TracedProcess(const std::function<int()>& work) : process_(::fork()) {
    if (process_ == 0) {
      if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(kNotTraced);
      ::raise(SIGSTOP);
      ::syscall(SYS_getpgid, kMark);
      const int result = work();
      ::syscall(SYS_getpgid, kMark);
      ::_exit(result);
    }
    ::waitpid(process_, &status_, 0);
    if (!ended())
      ::ptrace(PTRACE_SETOPTIONS, process_, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  }
  ~TracedProcess() {
    if (!ended()) kill();
  }
  TracedProcess(const TracedProcess&) = delete;
  TracedProcess& operator=(const TracedProcess&) = delete;

  static constexpr int kNotTraced = 77;

  bool ended() const { return WIFEXITED(status_) || WIFSIGNALED(status_); }
  int status() const { return status_; }

  /// Goes on to the next begin or end of a call, or to the end.
  void go_on() {
    int signal = 0;
    do {
      ::ptrace(PTRACE_SYSCALL, process_, nullptr, signal);
      ::waitpid(process_, &status_, 0);
      signal = ended() ? 0 : WSTOPSIG(status_);
    } while (!ended() && signal != (SIGTRAP | 0x80));
  }
  user_regs_struct registers() const {
    user_regs_struct registers{};
    ::ptrace(PTRACE_GETREGS, process_, nullptr, &registers);
    return registers;
  }
  void set(user_regs_struct registers) const {
    ::ptrace(PTRACE_SETREGS, process_, nullptr, &registers);
  }
  void kill() {
    ::kill(process_, SIGKILL);
    while (!ended()) ::waitpid(process_, &status_, 0);
  }
  static bool is_mark(const user_regs_struct& at_begin) {
    return at_begin.orig_rax == SYS_getpgid && at_begin.rdi == kMark;
  }

 private:
  static constexpr unsigned long kMark = 0x5EED;  // a process group that nobody asks for

  pid_t process_;
  int status_ = 0;
};

/// Sanitizers end the process if the system refuses them memory, so their calls are left alone.
inline bool is_left_alone(int64_t number) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr std::array kMemory = {SYS_mmap, SYS_munmap, SYS_mprotect, SYS_madvise, SYS_brk};
  return std::ranges::find(kMemory, number) != kMemory.end();
#else
  return number < 0;
#endif
}

/// Runs `work` in a process of its own (fork), which exits with its result, and meddles with one of
/// its system calls. `work` must not start threads.
inline Ended run_traced(const std::function<int()>& work, const Intervention& what) {
  using Kind = Intervention::Kind;
  Ended result;
  TracedProcess process(work);
  bool inside = false;
  for (process.go_on(); !process.ended(); process.go_on()) {
    user_regs_struct call = process.registers();
    const bool mark = TracedProcess::is_mark(call);
    const auto number = static_cast<int64_t>(call.orig_rax);
    const bool counts = inside && !mark && !is_left_alone(number);
    if (counts) result.calls.push_back(number);
    const bool meddle = counts && std::ssize(result.calls) == what.at;
    if (mark) inside = !inside;
    if (meddle) {
      result.number = number;
      if (what.kind == Kind::kill_before) process.kill();
      if (what.kind == Kind::fail) call.orig_rax = static_cast<unsigned long long>(-1);
      const bool moves_bytes = number == SYS_write || number == SYS_read || number == SYS_pread64 ||
                               number == SYS_pwrite64;
      if (what.kind == Kind::shorten && moves_bytes) call.rdx = (call.rdx + 1) / 2;
      if (what.kind == Kind::fail || what.kind == Kind::shorten) process.set(call);
    }
    if (!process.ended()) process.go_on();  // to the call's end
    if (process.ended()) break;
    if (meddle && what.kind == Kind::kill_after) process.kill();
    if (meddle && what.kind == Kind::fail) {
      call = process.registers();
      call.rax = static_cast<unsigned long long>(-what.error);
      process.set(call);
    }
    if (process.ended()) break;
  }
  result.status = process.status();
  result.supported =
      !(WIFEXITED(result.status) && WEXITSTATUS(result.status) == TracedProcess::kNotTraced);
  return result;
}

#else

inline Ended run_traced(const std::function<int()>&, const Intervention&) {
  return {.supported = false};
}

#endif

}  // namespace demi::checkpoint
