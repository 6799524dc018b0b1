#pragma once

// A network between the ranks of a test that can delay, stall and break. Every process of the test
// program comes with its own connect() and listen(), which LibTorch's calls find first: if
// DEMI_TEST_PROXY names the proxy's port, a TCP connection goes through the proxy.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace demi::testing {

/// What a process says first to the proxy.
struct ProxyRequest {
  enum Kind : std::uint32_t { kConnect, kListen } kind;
  std::int32_t rank;  // of the process that asks
  std::uint32_t port;
};

/// The two ends of a connection.
struct Link {
  static constexpr int kStore = -1;
  int from = 0;  // the rank that connected
  int to = 0;    // a rank, or kStore
  bool is_between_ranks() const { return to != kStore; }
  bool is_of(int rank) const { return from == rank || to == rank; }
};

namespace proxy_detail {

inline int raw_connect(int socket, std::uint32_t port) {
  int domain = AF_INET;
  socklen_t size = sizeof domain;
  ::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &size);
  if (domain == AF_INET6) {  // which reaches an IPv4 address as ::ffff:127.0.0.1
    sockaddr_in6 mapped{};
    mapped.sin6_family = AF_INET6;
    mapped.sin6_port = htons(static_cast<std::uint16_t>(port));
    ::inet_pton(AF_INET6, "::ffff:127.0.0.1", &mapped.sin6_addr);
    return static_cast<int>(::syscall(SYS_connect, socket, &mapped, sizeof mapped));
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return static_cast<int>(::syscall(SYS_connect, socket, &address, sizeof address));
}

inline bool write_all(int socket, const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t written = ::send(socket, data, size, MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    data += written;
    size -= static_cast<std::size_t>(written);
  }
  return true;
}

}  // namespace proxy_detail

/// The network. One thread for each direction of each connection.
class NetworkProxy {
 public:
  enum class Fault {
    kNone,
    kDelay,  // each piece of data arrives `delay` later
    kStall,  // nothing arrives, and nobody is told
    kCut     // connections are reset, and new ones too
  };
  using Links = std::function<bool(const Link&)>;

  NetworkProxy() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      throw std::runtime_error("the proxy finds no free port");
    ::listen(listener_, 64);
    socklen_t size = sizeof address;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    threads_.emplace_back([this] { accept_all(); });
  }
  ~NetworkProxy() {
    over_ = true;
    for (;;) {
      std::list<std::thread> threads;
      {
        const std::lock_guard lock(mutex_);
        threads.swap(threads_);
      }
      if (threads.empty()) break;
      for (std::thread& thread : threads) thread.join();
    }
    ::close(listener_);
  }
  NetworkProxy(const NetworkProxy&) = delete;
  NetworkProxy& operator=(const NetworkProxy&) = delete;

  int port() const { return port_; }

  /// From now on, on these links; the others have none.
  void set(Fault fault, Links links, std::chrono::milliseconds delay = {}) {
    const std::lock_guard lock(mutex_);
    fault_ = fault;
    links_ = std::move(links);
    delay_ = delay;
  }
  /// Connections that were made so far on such links.
  int count(const Links& links) {
    const std::lock_guard lock(mutex_);
    int found = 0;
    for (const Link& link : seen_) found += links(link) ? 1 : 0;
    return found;
  }

 private:
  static constexpr int kLookMs = 10;

  Fault fault_of(const Link& link, std::chrono::milliseconds* delay = nullptr) {
    const std::lock_guard lock(mutex_);
    if (delay) *delay = delay_;
    return fault_ != Fault::kNone && links_(link) ? fault_ : Fault::kNone;
  }

  void accept_all() {
    while (!over_) {
      pollfd event{listener_, POLLIN, 0};
      if (::poll(&event, 1, kLookMs) <= 0) continue;
      const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      ProxyRequest request{};
      if (client < 0) continue;
      if (::recv(client, &request, sizeof request, MSG_WAITALL) != sizeof request) {
        ::close(client);
        continue;
      }
      serve(client, request);
    }
  }

  void serve(int client, const ProxyRequest& request) {
    const std::lock_guard lock(mutex_);
    if (request.kind == ProxyRequest::kListen) {
      owners_[request.port] = request.rank;
      ::send(client, "", 1, MSG_NOSIGNAL);
      ::close(client);
      return;
    }
    const auto owner = owners_.find(request.port);
    const Link link{request.rank, owner == owners_.end() ? Link::kStore : owner->second};
    seen_.push_back(link);
    const int server = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if ((fault_ == Fault::kCut && links_(link)) ||
        proxy_detail::raw_connect(server, request.port) != 0) {
      reset(client);
      reset(server);
      ::close(client);
      ::close(server);
      return;
    }
    const int on = 1;
    for (const int end : {client, server})
      ::setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    auto open = std::make_shared<Ends>(client, server);
    threads_.emplace_back([this, link, open] { pump(link, open, open->client, open->server); });
    threads_.emplace_back([this, link, open] { pump(link, open, open->server, open->client); });
  }

  // Closed by the last of the two directions.
  struct Ends {
    Ends(int first, int second) : client(first), server(second) {}
    ~Ends() {
      ::close(client);
      ::close(server);
    }
    Ends(const Ends&) = delete;
    Ends& operator=(const Ends&) = delete;
    int client, server;
    std::atomic<bool> broken = false;
  };

  // The close() that follows is a reset instead of an orderly end.
  static void reset(int socket) {
    const linger now{1, 0};
    ::setsockopt(socket, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }

  void pump(const Link& link, const std::shared_ptr<Ends>& ends, int from, int to) {
    std::vector<char> data(1 << 16);
    while (!over_ && !ends->broken) {
      std::chrono::milliseconds delay{0};
      const Fault fault = fault_of(link, &delay);
      if (fault == Fault::kCut) break;
      if (fault == Fault::kStall) {
        std::this_thread::sleep_for(std::chrono::milliseconds(kLookMs));
        continue;
      }
      pollfd event{from, POLLIN, 0};
      if (::poll(&event, 1, kLookMs) <= 0) continue;
      const ssize_t size = ::recv(from, data.data(), data.size(), 0);
      if (size == 0) {
        ::shutdown(to, SHUT_WR);
        return;
      }
      if (size < 0) break;
      if (fault == Fault::kDelay) std::this_thread::sleep_for(delay);
      // What is under way when a stall begins is stalled too.
      while (fault_of(link) == Fault::kStall && !over_)
        std::this_thread::sleep_for(std::chrono::milliseconds(kLookMs));
      if (!write_while_open(to, data.data(), static_cast<std::size_t>(size), *ends)) break;
    }
    ends->broken = true;
    reset(ends->client);
    reset(ends->server);
  }

  // A receiver that does not read must not keep the thread.
  bool write_while_open(int to, const char* data, std::size_t size, const Ends& ends) {
    while (size > 0) {
      if (over_ || ends.broken) return false;
      pollfd event{to, POLLOUT, 0};
      if (::poll(&event, 1, kLookMs) <= 0) continue;
      const ssize_t written = ::send(to, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (written < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (written <= 0) return false;
      data += written;
      size -= static_cast<std::size_t>(written);
    }
    return true;
  }

  int listener_, port_ = 0;
  std::atomic<bool> over_ = false;
  std::mutex mutex_;
  Fault fault_ = Fault::kNone;
  Links links_;
  std::chrono::milliseconds delay_{0};
  std::map<std::uint32_t, int> owners_;  // of the ports on which ranks listen
  std::vector<Link> seen_;
  std::list<std::thread> threads_;
};

}  // namespace demi::testing
