#include "lab/files/fetch.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "demi/core/error.h"
#include "lab/files/folder_testing.h"
#include "lab/files/md5.h"

namespace demi::files {
namespace {

using testing::HasSubstr;

/// An HTTP/1.1 server on this machine that knows one file and ranges of it, and breaks off as often
/// as the test says.
class Server {
 public:
  explicit Server(std::string content, int break_off = 0, bool ranges = true)
      : content_(std::move(content)),
        break_off_(break_off),
        ranges_(ranges),
        socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(socket_, 4), 0);
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)) + "/file";
    thread_ = std::thread([this] { serve(); });
  }
  ~Server() {
    ::shutdown(socket_, SHUT_RDWR);
    thread_.join();
    ::close(socket_);
  }
  const std::string& url() const { return url_; }
  int64_t bytes_sent() const { return sent_; }

 private:
  void serve() {
    for (int client; (client = ::accept(socket_, nullptr, nullptr)) >= 0; ::close(client)) {
      std::string request(4096, '\0');
      const ssize_t got = ::recv(client, request.data(), request.size(), 0);
      request.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
      const std::size_t range = ranges_ ? request.find("Range: bytes=") : std::string::npos;
      const std::size_t from =
          range == std::string::npos ? 0 : std::stoul(request.substr(range + 13));
      if (from >= content_.size()) {
        send(
            client,
            "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        continue;
      }
      const std::string rest = content_.substr(from);
      std::string head = range == std::string::npos
                             ? "HTTP/1.1 200 OK\r\n"
                             : "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes " +
                                   std::to_string(from) + "-" +
                                   std::to_string(content_.size() - 1) + "/" +
                                   std::to_string(content_.size()) + "\r\n";
      send(client, head + "Content-Length: " + std::to_string(rest.size()) +
                       "\r\nConnection: close\r\n\r\n");
      const bool breaks = break_off_-- > 0;
      sent_ += static_cast<int64_t>(breaks ? rest.size() / 2 : rest.size());
      send(client, breaks ? rest.substr(0, rest.size() / 2) : rest);
    }
  }
  static void send(int client, const std::string& text) {
    for (std::size_t at = 0; at < text.size();) {
      const ssize_t sent = ::send(client, text.data() + at, text.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) return;
      at += static_cast<std::size_t>(sent);
    }
  }

  std::string content_, url_;
  int break_off_;
  bool ranges_;
  int socket_;
  std::atomic<int64_t> sent_ = 0;
  std::thread thread_;
};

const std::string kContent = [] {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += std::to_string(i);
  return text;
}();

// RFC 1321, appendix A.5.
TEST(Md5, GivesTheAnswersOfTheRfc) {
  EXPECT_EQ(md5(""), "d41d8cd98f00b204e9800998ecf8427e");
  EXPECT_EQ(md5("abc"), "900150983cd24fb0d6963f7d28e17f72");
  EXPECT_EQ(md5("message digest"), "f96b697d7cb7938d525a2f31aaf161d0");
  EXPECT_EQ(md5("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"),
            "d174ab98d277d9f5a5611c2c9f419d9f");
  EXPECT_EQ(md5("12345678901234567890123456789012345678901234567890123456789012345678901234567890"),
            "57edf4a22be3c955ac49da2e2107b67a");
}

TEST(Fetch, GetsAFileAndCountsItsBytes) {
  const TestFolder folder;
  const Server server(kContent);
  int64_t last = 0, whole = 0;
  fetch(server.url(), folder / "x", md5(kContent), [&](int64_t have, int64_t total) {
    last = have;
    whole = std::max(whole, total);
  });
  EXPECT_EQ(contents(folder / "x"), kContent);
  EXPECT_FALSE(std::filesystem::exists(folder / "x.part"));
  EXPECT_EQ(whole, static_cast<int64_t>(kContent.size()));
  EXPECT_EQ(md5_of_file(folder / "x"), md5(kContent));
}

TEST(Fetch, GoesOnWhereItBrokeOff) {
  const TestFolder folder;
  const Server server(kContent, /*break_off=*/2);
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THAT(complaint([&] { fetch(server.url(), folder / "x", md5(kContent)); }),
                HasSubstr("it resumes where it stopped"));
    EXPECT_FALSE(std::filesystem::exists(folder / "x"));
  }
  fetch(server.url(), folder / "x", md5(kContent));
  EXPECT_EQ(contents(folder / "x"), kContent);
  EXPECT_EQ(server.bytes_sent(), static_cast<int64_t>(kContent.size()));  // no byte twice
}

TEST(Fetch, OfTwoAtOnceOneWaitsForTheOther) {
  for (int time = 0; time < 5; ++time) {
    const TestFolder folder;
    const Server server(kContent);
    std::atomic<int> begun = 0;
    std::vector<std::string> errors(2);
    std::vector<std::thread> both;
    for (std::string& said : errors)
      both.emplace_back([&] {
        ++begun;
        const auto once_both_have_begun = [&](int64_t, int64_t) {
          while (begun < 2) std::this_thread::yield();
        };
        try {
          fetch(server.url(), folder / "x", md5(kContent), once_both_have_begun);
        } catch (const std::exception& error) {
          said = error.what();
        }
      });
    for (std::thread& one : both) one.join();
    EXPECT_THAT(errors, testing::Each(""));
    EXPECT_EQ(contents(folder / "x"), kContent);
    EXPECT_FALSE(std::filesystem::exists(folder / "x.part"));
    EXPECT_EQ(server.bytes_sent(), static_cast<int64_t>(kContent.size()));
  }
}

TEST(Fetch, StartsAgainWhereTheServerKnowsNoRanges) {
  const TestFolder folder;
  const Server server(kContent, 0, /*ranges=*/false);
  folder.write("x.part", kContent.substr(0, 1000));
  fetch(server.url(), folder / "x", md5(kContent));
  EXPECT_EQ(contents(folder / "x"), kContent);
}

TEST(Fetch, StartsAgainWhereThePartIsTooLong) {
  const TestFolder folder;
  const Server server(kContent);
  folder.write("x.part", kContent + "more");
  fetch(server.url(), folder / "x", md5(kContent));
  EXPECT_EQ(contents(folder / "x"), kContent);
}

TEST(Fetch, AsksForNothingWhenThePartIsWhole) {
  const TestFolder folder;
  const Server server(kContent);
  folder.write("x.part", kContent);
  fetch(server.url(), folder / "x", md5(kContent));
  EXPECT_EQ(server.bytes_sent(), 0);
}

TEST(Fetch, RemovesWhatHasAnotherSum) {
  const TestFolder folder;
  const Server server(kContent);
  EXPECT_THAT(complaint([&] { fetch(server.url(), folder / "x", md5("other")); }),
              testing::AllOf(HasSubstr("seen: MD5 " + md5(kContent)),
                             HasSubstr("accepted: MD5 " + md5("other"))));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Fetch, SaysThatTheCertificatesAreNotThere) {
  const TestFolder folder;
  const Server server(kContent);
  ::setenv("SSL_CERT_FILE", "/nowhere/ca.pem", 1);
  const std::string said = complaint(
      [&] { fetch("https" + server.url().substr(4), folder / "file", std::string(32, '0')); });
  ::unsetenv("SSL_CERT_FILE");
  EXPECT_THAT(said, HasSubstr("/nowhere/ca.pem"));
  EXPECT_THAT(said, HasSubstr("SSL_CERT_FILE=FILE"));
}

TEST(Fetch, SaysThatThereIsNoServerOrNoFolder) {
  const TestFolder folder;
  EXPECT_THAT(complaint([&] { fetch("http://127.0.0.1:1/x", folder / "x", md5("")); }),
              HasSubstr("could not be fetched"));
  EXPECT_THROW(fetch("http://127.0.0.1:1/x", folder / "no" / "x", md5("")), TrainingError);
}

}  // namespace
}  // namespace demi::files
