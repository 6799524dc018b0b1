#include "demi/distributed/c10d.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>

namespace demi::distributed {
namespace {

std::set<std::string> threads() {
  std::set<std::string> ids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    ids.insert(entry.path().filename());
  return ids;
}

// As proc(5) has it: a bit a signal, in hexadecimal.
bool blocks_sigpipe(const std::string& thread) {
  std::ifstream status("/proc/self/task/" + thread + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("SigBlk:"))
      return (std::stoull(line.substr(7), nullptr, 16) >> (SIGPIPE - 1) & 1) != 0;
  return false;
}

void expect_blocked(const std::set<std::string>& before) {
  std::size_t made = 0;
  for (const std::string& thread : threads()) {
    if (before.contains(thread)) continue;
    ++made;
    EXPECT_TRUE(blocks_sigpipe(thread)) << thread;
  }
  EXPECT_GE(made, 1U);
  EXPECT_FALSE(blocks_sigpipe(std::to_string(::gettid()))) << "the caller's own";
}

// A rank that dies while another one writes to it would end that one, too, without a word.
TEST(C10d, ThreadsThatWriteToOtherProcessesBlockSigpipe) {
  const auto of_one = threads();
  const ServedStore served = serve_store();
  expect_blocked(of_one);
  const auto before = threads();
  const auto group = gloo(thread_store(), "", 0, 1, std::chrono::seconds(10));
  expect_blocked(before);
}

// The caller may have blocked it.
TEST(C10d, LeavesTheSignalsOfTheCallerAsTheyWere) {
  std::thread([] {
    sigset_t pipe;
    ::sigemptyset(&pipe);
    ::sigaddset(&pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
    const ServedStore served = serve_store();
    EXPECT_TRUE(blocks_sigpipe(std::to_string(::gettid())));
  }).join();
}

}  // namespace
}  // namespace demi::distributed
