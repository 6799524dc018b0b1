#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace demi::cli {

/// TORCHELASTIC_RUN_ID of those that RankProcesses starts.
inline constexpr std::string_view kRunId = "demi";

/// The processes of this program that are started on this machine, one for each rank, with the
/// arguments of this process, in a process group of their own. If this process dies, the kernel
/// sends them SIGTERM; if a second Ctrl-C ends it, they are killed.
class RankProcesses {
 public:
  /// Called with the rank that ended first with an error, and how it ended.
  using OnEnd = std::function<void(const std::string& which)>;
  /// Starts the processes, which meet in the store at `port` of this machine. `threads`:
  /// OMP_NUM_THREADS of each; 0: unchanged. Gloo connects them over the loopback interface, unless
  /// GLOO_SOCKET_IFNAME names another one.
  RankProcesses(int count, int port, int threads, OnEnd on_end);
  /// Kills those that are left.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  /// Waits until all have ended. Passes on the ranks' output and the signals that this process
  /// gets. If one ends with an error, the others have a few seconds to find out. Returns the
  /// program's exit code, and names the first rank that failed if that rank could not report it
  /// itself.
  int wait();

  /// Whether a signal ended the rank. After wait().
  bool was_killed(int rank) const;

 private:
  struct Process {
    pid_t id = -1;
    int words = -1;    // the end of a pipe: its stderr; -1 for rank 0, which has that of this one
    std::string line;  // that has not ended
    std::optional<int> status;  // as of waitpid
  };
  using Clock = std::chrono::steady_clock;

  void start(int rank, const std::vector<char*>& words, const std::vector<char*>& environment);
  void pass_on_words(std::chrono::milliseconds patience);
  void say(int rank, std::string& line, bool whole) const;
  void pass_on_signals();
  void note_ends();
  void end_those_left();
  bool have_ended() const;
  int exit_code() const;

  std::vector<Process> processes_;  // by rank
  OnEnd on_end_;
  std::optional<int> first_;                 // the rank that ended first with an error
  std::optional<Clock::time_point> ending_;  // since then the others should end too
  bool is_terminal_ = false;
  int signal_ = 0, saves_ = 0;  // that were passed on
  int pressure_ = 0;            // 1: SIGTERM was sent, 2: SIGKILL
};

}  // namespace demi::cli
