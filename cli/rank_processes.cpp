#include "cli/rank_processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "cli/exit_code.h"
#include "cli/stop.h"
#include "demi/core/error.h"

namespace demi::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience{100};      // between two looks at signals and ends
constexpr milliseconds kUntilTerm{15'000};  // ranks find out within 5 s, in their next collective
constexpr milliseconds kUntilKill{60'000};  // rank 0 saves what it has

// The words that this process was started with.
std::vector<std::string> own_words() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> words;
  for (std::size_t start = 0; start < all.size();) {
    const std::size_t end = all.find('\0', start);
    words.push_back(all.substr(start, end - start));
    if (end == std::string::npos) break;
    start = end + 1;
  }
  return words;
}

bool is_of_launcher(std::string_view variable) {
  constexpr std::array kNames{
      "RANK=", "WORLD_SIZE=", "LOCAL_RANK=", "MASTER_ADDR=", "MASTER_PORT=", "TORCHELASTIC_"};
  for (const std::string_view name : kNames)
    if (variable.starts_with(name)) return true;
  return false;
}

std::vector<std::string> environment_of(int rank, int count, int port, int threads) {
  std::vector<std::string> all;
  for (char** variable = environ; *variable; ++variable)
    if (!is_of_launcher(*variable)) all.emplace_back(*variable);
  all.push_back(fmt::format("RANK={}", rank));
  all.push_back(fmt::format("WORLD_SIZE={}", count));
  all.push_back(fmt::format("LOCAL_RANK={}", rank));
  all.emplace_back("MASTER_ADDR=127.0.0.1");
  all.push_back(fmt::format("MASTER_PORT={}", port));
  all.emplace_back("TORCHELASTIC_USE_AGENT_STORE=True");  // this process serves it
  // Gloo asks nobody who he is, so it listens where other machines do not reach it.
  if (!::getenv("GLOO_SOCKET_IFNAME")) all.emplace_back("GLOO_SOCKET_IFNAME=lo");
  // LibTorch would print the same failure between demi's messages, with its stack.
  if (!::getenv("TORCH_CPP_LOG_LEVEL")) all.emplace_back("TORCH_CPP_LOG_LEVEL=ERROR");
  all.push_back(fmt::format("TORCHELASTIC_RUN_ID={}", kRunId));  // an outer launcher does not count
  if (threads > 0) all.push_back(fmt::format("OMP_NUM_THREADS={}", threads));
  return all;
}

std::string text_of_end(int rank, int status) {
  if (WIFSIGNALED(status))
    return fmt::format("rank {} was ended by signal {} ({})", rank, WTERMSIG(status),
                       ::strsignal(WTERMSIG(status)));
  return fmt::format("rank {} ended with exit code {}", rank, WEXITSTATUS(status));
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

[[noreturn]] void cannot_start(const char* what) {
  throw DeviceError({.where = "--ranks",
                     .what = what,
                     .seen = std::strerror(errno),
                     .accepted = "room for one more process",
                     .advice = "fewer --ranks"});
}

}  // namespace

RankProcesses::RankProcesses(int count, int port, int threads, OnEnd on_end)
    : processes_(static_cast<std::size_t>(count)),
      on_end_(std::move(on_end)),
      is_terminal_(::isatty(STDERR_FILENO) == 1),
      saves_(save_requests()) {
  std::vector<std::string> words = own_words();
  const std::vector<char*> word_pointers = pointers(words);
  for (int rank = 0; rank < count; ++rank) {
    std::vector<std::string> environment = environment_of(rank, count, port, threads);
    start(rank, word_pointers, pointers(environment));
  }
}

// Between fork and exec only what is safe in a process of several threads.
void RankProcesses::start(int rank, const std::vector<char*>& words,
                          const std::vector<char*>& environment) {
  Process& process = processes_[static_cast<std::size_t>(rank)];
  std::array<int, 2> pipe{-1, -1};
  if (rank > 0 && ::pipe2(pipe.data(), O_CLOEXEC) != 0) cannot_start("a pipe cannot be made");
  const pid_t parent = ::getpid(), group = rank == 0 ? 0 : processes_[0].id;
  process.id = ::fork();
  if (process.id < 0) cannot_start("a process cannot be started");
  if (process.id == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(kStoppedBySignal + SIGTERM);
    ::setpgid(0, group);  // Ctrl-C reaches it through this process alone, once
    if (rank > 0) {
      ::dup2(pipe[1], STDOUT_FILENO);
      ::dup2(pipe[1], STDERR_FILENO);
    }
#ifdef SYS_close_range
    ::syscall(SYS_close_range, 3U, ~0U, 0U);  // the store's port, the other ranks' pipes
#endif
    ::execve("/proc/self/exe", words.data(), environment.data());
    ::_exit(127);
  }
  if (rank == 0) {
    ::setpgid(process.id, 0);  // the next rank joins it, and rank 0 may not have run yet
    end_with_program(process.id);
    return;
  }
  ::close(pipe[1]);
  process.words = pipe[0];
}

RankProcesses::~RankProcesses() {
  end_with_program(0);
  for (Process& process : processes_) {
    if (process.words >= 0) ::close(process.words);
    if (process.id <= 0 || process.status) continue;
    ::kill(process.id, SIGKILL);
    ::waitpid(process.id, nullptr, 0);
  }
}

int RankProcesses::wait() {
  while (!have_ended()) {
    pass_on_words(kPatience);
    pass_on_signals();
    note_ends();
    end_those_left();
  }
  pass_on_words(milliseconds(0));
  const int code = exit_code();
  if (!first_) return code;
  const int status = *processes_[static_cast<std::size_t>(*first_)].status;
  if (WIFSIGNALED(status))
    std::fprintf(stderr, "demi: rank %d was ended by signal %d (%s), and the others with it\n",
                 *first_, WTERMSIG(status), ::strsignal(WTERMSIG(status)));
  else if (*first_ > 0 && signal_ == 0 && code != kTimeIsOver)
    std::fprintf(stderr, "demi: rank %d ended first, with exit code %d\n", *first_,
                 WEXITSTATUS(status));
  return code;
}

// Passes on the ranks' output, and waits for it so long at most.
void RankProcesses::pass_on_words(milliseconds patience) {
  std::vector<pollfd> open;
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    if (processes_[rank].words < 0) continue;
    open.push_back({processes_[rank].words, POLLIN, 0});
    ranks.push_back(static_cast<int>(rank));
  }
  if (::poll(open.data(), open.size(), static_cast<int>(patience.count())) <= 0) return;
  for (std::size_t i = 0; i < open.size(); ++i) {
    if (open[i].revents == 0) continue;
    Process& process = processes_[static_cast<std::size_t>(ranks[i])];
    std::array<char, 4096> bytes{};
    const ssize_t count = ::read(process.words, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count > 0) {
      process.line.append(bytes.data(), static_cast<std::size_t>(count));
    } else {
      ::close(process.words);
      process.words = -1;
    }
    say(ranks[i], process.line, /*whole=*/count <= 0);
  }
}

// Prints whole lines alone, so that those of two ranks do not mix. `whole`: the rest of the output
// is a line.
void RankProcesses::say(int rank, std::string& line, bool whole) const {
  if (whole && !line.empty() && line.back() != '\n') line += '\n';
  for (std::size_t end = line.find('\n'); end != std::string::npos; end = line.find('\n')) {
    const std::string text =
        fmt::format("{}rank {}: {}\n", is_terminal_ ? "\r\x1b[K" : "", rank, line.substr(0, end));
    std::fwrite(text.data(), 1, text.size(), stderr);
    line.erase(0, end + 1);
  }
}

// A request for a checkpoint is for rank 0, which saves.
void RankProcesses::pass_on_signals() {
  const int saves = save_requests();
  if (saves != saves_ && !processes_[0].status) ::kill(processes_[0].id, SIGUSR1);
  saves_ = saves;
  if (signal_ != 0 || stop_signal() == 0) return;
  signal_ = stop_signal();
  for (const Process& process : processes_)
    if (!process.status) ::kill(process.id, signal_);
}

void RankProcesses::note_ends() {
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    Process& process = processes_[rank];
    int status = 0;
    if (process.status || ::waitpid(process.id, &status, WNOHANG) != process.id) continue;
    process.status = status;
    const bool failed = !WIFEXITED(status) || WEXITSTATUS(status) != kDone;
    if (failed && !first_) {
      first_ = static_cast<int>(rank);
      on_end_(text_of_end(*first_, status));
    }
    if (!ending_ && (failed || rank == 0)) ending_ = Clock::now();
  }
}

void RankProcesses::end_those_left() {
  if (!ending_ || pressure_ == 2) return;
  const auto waited = Clock::now() - *ending_;
  const int pressure = waited > kUntilKill ? 2 : waited > kUntilTerm ? 1 : 0;
  if (pressure == pressure_) return;
  pressure_ = pressure;
  for (const Process& process : processes_)
    if (!process.status) ::kill(process.id, pressure == 2 ? SIGKILL : SIGTERM);
}

bool RankProcesses::was_killed(int rank) const {
  const std::optional<int>& status = processes_[static_cast<std::size_t>(rank)].status;
  return status && WIFSIGNALED(*status);
}

bool RankProcesses::have_ended() const {
  for (const Process& process : processes_)
    if (!process.status || process.words >= 0) return false;
  return true;
}

int RankProcesses::exit_code() const {
  if (!first_) return kDone;
  const int status = *processes_[static_cast<std::size_t>(*first_)].status;
  if (signal_ != 0) return kStoppedBySignal + signal_;
  return WIFEXITED(status) ? WEXITSTATUS(status) : kDevice;
}

}  // namespace demi::cli
