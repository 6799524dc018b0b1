#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace demi::testing {

/// A rank as a process of its own: runs the disabled test `name` of this program.
class Child {
 public:
  Child(const std::string& name, const std::map<std::string, std::string>& variables,
        const std::filesystem::path& output)
      : output_(output) {
    const std::string filter = "--gtest_filter=" + name;
    std::vector<std::string> settings;
    for (char** variable = environ; *variable; ++variable) settings.emplace_back(*variable);
    for (const auto& [key, value] : variables) settings.push_back(key + "=" + value);
    std::vector<char*> environment;
    for (std::string& setting : settings) environment.push_back(setting.data());
    environment.push_back(nullptr);
    const char* arguments[] = {"child", filter.c_str(), "--gtest_also_run_disabled_tests", nullptr};
    process_ = ::fork();
    if (process_ != 0) return;
    const int file = ::open(output.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    ::dup2(file, 1);
    ::dup2(file, 2);
    ::execve("/proc/self/exe", const_cast<char**>(arguments), environment.data());
    ::_exit(127);
  }
  ~Child() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void send(int signal) const { ::kill(process_, signal); }

  /// The exit code, 128 + the signal that ended it, or -1: it still runs after `limit`.
  int wait(std::chrono::milliseconds limit) {
    const auto end = std::chrono::steady_clock::now() + limit;
    int status = 0;
    while (::waitpid(process_, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > end) return -1;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    process_ = -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  std::string output() const {
    std::ifstream file(output_);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  bool has_said(const std::string& text, std::chrono::milliseconds limit) const {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (output().find(text) == std::string::npos) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return true;
  }

 private:
  std::filesystem::path output_;
  pid_t process_ = -1;
};

}  // namespace demi::testing
