#include "tests/network_proxy.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

namespace demi::testing {
namespace {

using proxy_detail::raw_connect;
using proxy_detail::write_all;

/// Connects `socket` to the proxy, and says what for.
int ask(int socket, ProxyRequest::Kind kind, std::uint32_t port) {
  const ProxyRequest request{kind, std::stoi(std::getenv("RANK")), port};
  const int flags = ::fcntl(socket, F_GETFL);
  ::fcntl(socket, F_SETFL, flags & ~O_NONBLOCK);
  const bool said =
      raw_connect(socket, static_cast<std::uint32_t>(std::stoi(std::getenv("DEMI_TEST_PROXY")))) ==
          0 &&
      write_all(socket, reinterpret_cast<const char*>(&request), sizeof request);
  ::fcntl(socket, F_SETFL, flags);
  if (!said) errno = ECONNREFUSED;
  return said ? 0 : -1;
}

bool is_stream(int socket) {
  int type = 0;
  socklen_t size = sizeof type;
  return ::getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
}

}  // namespace
}  // namespace demi::testing

extern "C" {

__attribute__((visibility("default"))) int connect(int socket, const sockaddr* address,
                                                   socklen_t size) {
  const bool has_port = address->sa_family == AF_INET || address->sa_family == AF_INET6;
  if (!std::getenv("DEMI_TEST_PROXY") || !has_port || !demi::testing::is_stream(socket))
    return static_cast<int>(::syscall(SYS_connect, socket, address, size));
  sockaddr_in target{};  // the port is at the same place in both kinds of address
  std::memcpy(&target, address, sizeof target);
  return demi::testing::ask(socket, demi::testing::ProxyRequest::kConnect, ntohs(target.sin_port));
}

// Tells the proxy whose port this is, before anybody can connect to it.
__attribute__((visibility("default"))) int listen(int socket, int backlog) {
  const int result = static_cast<int>(::syscall(SYS_listen, socket, backlog));
  if (result != 0 || !std::getenv("DEMI_TEST_PROXY")) return result;
  sockaddr_in address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      address.sin_family != AF_INET)
    return result;  // a store's port has both kinds of address, and no owner
  const int proxy = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  char heard = 0;
  if (demi::testing::ask(proxy, demi::testing::ProxyRequest::kListen, ntohs(address.sin_port)) == 0)
    static_cast<void>(::recv(proxy, &heard, 1, 0));
  ::close(proxy);
  return result;
}

}  // extern "C"
