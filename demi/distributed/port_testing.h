#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

namespace demi::testing {

/// A port of this machine that the system chose. It is nobody else's while this exists: the system
/// gives a bound port to no other program. A store can be served there all the same, since it binds
/// with SO_REUSEADDR, too, and nothing listens here.
class HeldPort {
 public:
  HeldPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    ::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    socklen_t size = sizeof address;
    if (::bind(socket_, reinterpret_cast<sockaddr*>(&address), size) != 0)
      throw std::runtime_error("no port can be bound");
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    number_ = ntohs(address.sin_port);
  }
  ~HeldPort() { ::close(socket_); }
  HeldPort(const HeldPort&) = delete;
  HeldPort& operator=(const HeldPort&) = delete;

  int number() const { return number_; }
  std::string text() const { return std::to_string(number_); }
  /// Keeps others from serving there from now on.
  void listen() const { ::listen(socket_, 1); }

 private:
  int socket_, number_ = 0;
};

}  // namespace demi::testing
