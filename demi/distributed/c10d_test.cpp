#include "demi/distributed/c10d.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "demi/core/error.h"

namespace demi::distributed {
namespace {

std::set<std::string> threads() {
  std::set<std::string> ids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    ids.insert(entry.path().filename());
  return ids;
}

// Whether the thread blocks SIGPIPE, by proc(5): a bit a signal, in hexadecimal.
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

// Another program, which accepts connections and says nothing, closes them, or greets.
class AnotherProgram {
 public:
  explicit AnotherProgram(const std::string& how) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(socket_, 64), 0);
    EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    if (how == "silent") return;
    serving_ = std::thread([this, greets = how == "greets"] {
      for (int made; (made = ::accept(socket_, nullptr, nullptr)) >= 0; ::close(made))
        if (greets) ::send(made, "SSH-2.0-other\r\n", 15, MSG_NOSIGNAL);
    });
  }
  ~AnotherProgram() {
    ::shutdown(socket_, SHUT_RDWR);
    if (serving_.joinable()) serving_.join();
    ::close(socket_);
  }
  StoreAddress address() const {
    return {.host = "127.0.0.1", .port = port_, .named = "MASTER_PORT=" + std::to_string(port_)};
  }

 private:
  int socket_, port_ = 0;
  std::thread serving_;
};

// c10d alone waits for the answer of what has the port until the start times out.
TEST(C10d, APortThatAnotherProgramHasIsSaidLongBeforeTheTimeout) {
  for (const char* how : {"silent", "closes", "greets"}) {
    const AnotherProgram program(how);
    const auto began = std::chrono::steady_clock::now();
    try {
      reach_store(program.address(), /*serve=*/false, std::chrono::minutes(5),
                  std::chrono::milliseconds(400));
      ADD_FAILURE() << how << ": no store is there";
    } catch (const DeviceError& error) {
      EXPECT_THAT(error.what(), ::testing::AllOf(::testing::HasSubstr("is no store"),
                                                 ::testing::HasSubstr(program.address().named)));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::minutes(1)) << how;
  }
}

}  // namespace
}  // namespace demi::distributed
