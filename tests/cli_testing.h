#pragma once

// Runs `demi` as a user does. Its path is in DEMI_PROGRAM; a fork of this process, in which the
// program is loaded, is the same at a tenth of the time (tests/loaded_program.h).
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/loaded_program.h"

namespace cli_testing {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

inline std::string slurp(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

struct Outcome {
  int code = -1;
  std::string out, err;
};

class Cli : public ::testing::Test {
 protected:
  Cli() : folder_(fs::temp_directory_path() / ("demi-cli-" + std::to_string(getpid()))) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~Cli() override { fs::remove_all(folder_); }

  // Starts the program with stdout and stderr in files, so that neither is a terminal. `before`
  // runs in the new process, just before the program, which is demi if no other is named.
  pid_t start(const Words& arguments, const std::function<void()>& before = {},
              const std::string& other = "") {
    const char* program = other.empty() ? std::getenv("DEMI_PROGRAM") : other.c_str();
    if (!program) throw std::runtime_error("DEMI_PROGRAM is not set");
    const bool may_be_loaded = other.empty() && can_be_forked();
    std::fflush(stdout);  // or the child would write it again
    const pid_t child = fork();
    if (child == 0) {
      (void)!freopen((folder_ / "out").c_str(), "w", stdout);
      (void)!freopen((folder_ / "err").c_str(), "w", stderr);
      setenv("DEMI_RUNS", (folder_ / "runs").c_str(), 1);
      // A shell without job control ignores SIGINT in what it starts in the background.
      for (const int number : {SIGHUP, SIGINT, SIGTERM, SIGUSR1}) signal(number, SIG_DFL);
      if (before) before();
      std::vector<char*> argv{const_cast<char*>(program)};
      for (const std::string& argument : arguments)
        argv.push_back(const_cast<char*>(argument.c_str()));
      if (may_be_loaded && !starts_for_real_ && why_not_loaded(arguments).empty())
        run_loaded_program(argv);
      argv.push_back(nullptr);
      execv(program, argv.data());
      _exit(127);
    }
    return child;
  }

  Outcome finish(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status),
            slurp(folder_ / "out"), slurp(folder_ / "err")};
  }

  Outcome run(const Words& arguments, const std::function<void()>& before = {},
              const std::string& other = "") {
    return finish(start(arguments, before, other));
  }

  // The output on a terminal of that many columns in place of stdout or stderr. At most 4 kB, which
  // a terminal holds.
  std::string shown_on_terminal(int in_place_of, unsigned short columns, const Words& arguments,
                                const std::function<void()>& before = {}, int code = 0) {
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    EXPECT_EQ(grantpt(terminal) + unlockpt(terminal), 0);
    const std::string name = ptsname(terminal);
    const int other_end = open(name.c_str(), O_RDWR | O_NOCTTY);
    const winsize size{.ws_row = 50, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    ioctl(other_end, TIOCSWINSZ, &size);
    const Outcome outcome = run(arguments, [&] {
      dup2(other_end, in_place_of);
      if (before) before();
    });
    EXPECT_EQ(outcome.code, code) << outcome.err;
    close(other_end);
    // In pieces, until nobody has the other end (EIO).
    std::string text;
    char piece[4096];
    for (ssize_t length = 0; (length = read(terminal, piece, sizeof piece)) > 0;)
      text.append(piece, static_cast<std::size_t>(length));
    close(terminal);
    return text;
  }

  static bool has_ended(pid_t child) {
    siginfo_t info{};
    waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT);
    return info.si_pid == child;
  }

  // The object that it prints with --json, with nothing on stderr.
  nlohmann::json json_of(Words arguments) {
    arguments.emplace_back("--json");
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    return nlohmann::json::parse(outcome.out, nullptr, /*allow_exceptions=*/false);
  }

  static bool has_data() { return fs::exists("/usr/share/datasets/fashion-mnist"); }

  fs::path folder_;

  // Set by a test that looks at the start itself or at the file that was started, or by `before`.
  bool starts_for_real_ = false;
};

}  // namespace cli_testing
