#include "demi/distributed/c10d.h"

#include <fmt/format.h>

#include "demi/core/error.h"
#include "demi/distributed/process_group.h"

#ifdef DEMI_C10D
#include <ATen/core/ivalue.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "demi/distributed/deadline.h"
#endif

namespace demi::distributed {
namespace {

class NothingToDo final : public Collective {
 public:
  void on_end(std::function<void(std::exception_ptr)> done) override { done(nullptr); }
  void synchronize() override {}
};

class Alone final : public Collectives {
 public:
  std::unique_ptr<Collective> all_reduce(const at::Tensor&, Reduction) override {
    return std::make_unique<NothingToDo>();
  }
  std::unique_ptr<Collective> broadcast(const at::Tensor&, int) override {
    return std::make_unique<NothingToDo>();
  }
  std::unique_ptr<Collective> all_gather(const at::Tensor& all, const at::Tensor& own) override {
    if (all.const_data_ptr() != own.const_data_ptr()) all.copy_(own);
    return std::make_unique<NothingToDo>();
  }
};

}  // namespace

std::unique_ptr<Collectives> alone() { return std::make_unique<Alone>(); }

#ifdef DEMI_C10D

namespace {

constexpr const char* kStart = "distributed.start";

// Makes threads that are started meanwhile block SIGPIPE. Threads of Gloo and of the store's server
// write to sockets with writev, which sends the signal if the other process is gone: it would end
// this one before its message names the rank. The write then fails with EPIPE.
class BlocksSigpipe {
 public:
  BlocksSigpipe() {
    sigset_t pipe;
    ::sigemptyset(&pipe);
    ::sigaddset(&pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe, &before_);
  }
  ~BlocksSigpipe() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlocksSigpipe(const BlocksSigpipe&) = delete;
  BlocksSigpipe& operator=(const BlocksSigpipe&) = delete;

 private:
  sigset_t before_;
};

class C10dStore final : public Store {
 public:
  C10dStore(c10::intrusive_ptr<c10d::Store> store, std::string name, int host_rank, bool clones)
      : store_(std::move(store)), name_(std::move(name)), host_rank_(host_rank), clones_(clones) {}

  void set(const std::string& key, const std::string& value) override { store_->set(key, value); }
  std::optional<std::string> get(const std::string& key) override {
    if (!store_->check({key})) return std::nullopt;
    return store_->get_to_str(key);
  }
  std::int64_t add(const std::string& key, std::int64_t value) override {
    return store_->add(key, value);
  }
  // c10d says by an exception alike that the time is over and that the store is gone.
  bool wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override {
    if (store_->check(keys)) return true;
    try {
      store_->wait(keys, timeout);
      return true;
    } catch (const std::exception&) {
      return store_->check(keys);
    }
  }
  std::shared_ptr<Store> for_another_thread() override {
    return std::make_shared<C10dStore>(clones_ ? store_->clone() : store_, name_, host_rank_,
                                       clones_);
  }
  std::string name() const override { return name_; }
  int host_rank() const override { return host_rank_; }
  const c10::intrusive_ptr<c10d::Store>& get() const { return store_; }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::string name_;
  int host_rank_;
  bool clones_;  // each object is a connection of its own
};

class C10dCollective final : public Collective {
 public:
  explicit C10dCollective(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}
  void on_end(std::function<void(std::exception_ptr)> done) override {
    work_->getFuture()->addCallback([done = std::move(done)](c10::ivalue::Future& future) {
      done(future.hasError() ? future.exception_ptr() : nullptr);
    });
  }
  bool is_over() override {
    if (!work_->isCompleted()) return false;
    if (const std::exception_ptr error = work_->exception()) std::rethrow_exception(error);
    return true;
  }
  void synchronize() override { work_->synchronize(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

class C10dCollectives : public Collectives {
 public:
  explicit C10dCollectives(c10::intrusive_ptr<c10d::Backend> backend)
      : backend_(std::move(backend)) {}

  std::unique_ptr<Collective> all_reduce(const at::Tensor& tensor, Reduction reduction) override {
    c10d::AllreduceOptions options;
    options.reduceOp = reduction == Reduction::kMax ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
    std::vector<at::Tensor> tensors{tensor};
    return begin([&] { return backend_->allreduce(tensors, options); });
  }
  std::unique_ptr<Collective> broadcast(const at::Tensor& tensor, int root) override {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    std::vector<at::Tensor> tensors{tensor};
    return begin([&] { return backend_->broadcast(tensors, options); });
  }
  // LibTorch 2.15 calls it all_gather_single, and this name still reaches it.
  std::unique_ptr<Collective> all_gather(const at::Tensor& all, const at::Tensor& own) override {
    at::Tensor output = all, input = own;
    return begin([&] { return backend_->_allgather_base(output, input); });
  }

 private:
  // Lets one collective begin at a time: c10d's flight recorder, which all groups of a process
  // share, enters their states into a map without a lock (a crash in LibTorch 2.11). It is a
  // member: in begin() each kind of collective would have a lock of its own.
  static inline std::mutex one_at_a_time_;
  template <class Start>
  static std::unique_ptr<Collective> begin(const Start& start) {
    const std::lock_guard lock(one_at_a_time_);
    return std::make_unique<C10dCollective>(start());
  }

 protected:
  c10::intrusive_ptr<c10d::Backend> backend_;
};

// The class is here and not in the plugin, which only makes the backend: NCCL's collectives and
// Gloo's then begin under the same lock. In a header there would be a lock in each library, since
// inline symbols are hidden.
class NcclCollectives final : public C10dCollectives {
 public:
  // Connects here: the first collective would, and wait for the other ranks under the lock.
  NcclCollectives(c10::intrusive_ptr<c10d::Backend> backend, at::Device device)
      : C10dCollectives(std::move(backend)) {
    backend_->eagerConnectSingleDevice(device);
  }
  void abort() override { backend_->abort(); }
  // Without shutdown() the backend's destructor warns, and aborts what is under way. shutdown()
  // waits for collectives, which do not end if another rank left them out.
  ~NcclCollectives() override {
    within<bool>(std::chrono::seconds(5), [backend = backend_] {
      try {
        backend->shutdown();
      } catch (const std::exception&) {  // of a communicator that has failed
      }
      return true;
    });
  }
};

struct FreeAddresses {
  void operator()(addrinfo* all) const { ::freeaddrinfo(all); }
};

// c10d tries an unknown name until its time is over.
std::unique_ptr<addrinfo, FreeAddresses> addresses_of(const StoreAddress& address) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const std::string port = std::to_string(address.port);
  const int error = ::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found);
  if (error != 0)
    throw DeviceError({.where = kStart,
                       .what = "no machine has this name",
                       .seen = address.named,
                       .accepted = "the name or address of the machine of rank 0",
                       .advice = fmt::format("the resolver says: {}", gai_strerror(error))});
  return std::unique_ptr<addrinfo, FreeAddresses>(found);
}

// Whether a process accepts a connection within a second.
bool is_listened_to(const addrinfo& address) {
  const int made = ::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (made < 0) return false;
  // poll() reports how it ends.
  static_cast<void>(::connect(made, address.ai_addr, address.ai_addrlen));
  pollfd wait{made, POLLOUT, 0};
  int error = 1;
  socklen_t size = sizeof error;
  if (::poll(&wait, 1, 1'000) == 1) ::getsockopt(made, SOL_SOCKET, SO_ERROR, &error, &size);
  ::close(made);
  return error == 0;
}

bool is_listened_to(const StoreAddress& address) {
  const auto all = addresses_of(address);
  for (const addrinfo* one = all.get(); one; one = one->ai_next)
    if (is_listened_to(*one)) return true;
  return false;
}

}  // namespace

std::shared_ptr<Store> tcp_store(const StoreAddress& address, bool serve,
                                 std::chrono::milliseconds timeout) {
  addresses_of(address);
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(address.port);
  options.isServer = serve;
  options.waitWorkers = false;  // Rendezvous::gather() waits, and knows who is missing
  options.multiTenant = true;   // a second group of this process
  options.timeout = timeout;
  const BlocksSigpipe in_its_threads;
  try {
    return std::make_shared<C10dStore>(
        c10::make_intrusive<c10d::TCPStore>(address.host, options),
        fmt::format("the store of {} at {}:{}", address.served_by_agent ? "the launcher" : "rank 0",
                    address.host, address.port),
        address.served_by_agent ? -1 : 0, true);
  } catch (const std::exception& error) {
    const std::string message = first_line(error);
    const bool taken = message.find("EADDRINUSE") != std::string::npos ||
                       message.find("in use") != std::string::npos;
    if (taken)
      throw DeviceError({.where = kStart,
                         .what = "the port is taken",
                         .seen = address.named,
                         .accepted = "a free port",
                         .advice = "choose another one for all ranks; ss -ltnp shows who has it"});
    throw DeviceError(
        {.where = kStart,
         .what = "the store does not answer",
         .seen = address.named,
         .accepted =
             fmt::format("an answer within {} s", static_cast<double>(timeout.count()) / 1e3),
         .advice = "see whether rank 0 runs, whether the address is that of its machine, and "
                   "whether a firewall is in between; LibTorch says: " +
                   message});
  }
}

// c10d asks what has accepted its connection whether it is a store, and waits for the answer
// without end, or tries again. A store that is there answers at once.
std::shared_ptr<Store> reach_store(const StoreAddress& address, bool serve,
                                   std::chrono::milliseconds timeout,
                                   std::chrono::milliseconds until_taken) {
  using Clock = std::chrono::steady_clock;
  const auto made = on_a_thread<std::shared_ptr<Store>>(
      [address, serve, timeout] { return tcp_store(address, serve, timeout); });
  const auto end = Clock::now() + timeout + std::chrono::milliseconds(500);
  std::optional<Clock::time_point> accepted_since;
  while (Clock::now() < end) {
    const auto pause = std::min<Clock::duration>(until_taken / 4, end - Clock::now());
    if (made.wait_for(pause) == std::future_status::ready) return made.get();
    if (serve || !is_listened_to(address))
      accepted_since.reset();
    else if (!accepted_since)
      accepted_since = Clock::now();
    else if (Clock::now() - *accepted_since >= until_taken)
      throw DeviceError(
          {.where = kStart,
           .what = "what listens there is no store",
           .seen = address.named,
           .accepted = "the store of rank 0",
           .advice = "another program has the port, or nothing comes through the network: ss "
                     "-ltnp on that machine shows who has it; choose a free one for all ranks"});
  }
  throw DeviceError({.where = kStart,
                     .what = "the store does not answer",
                     .seen = address.named,
                     .accepted = fmt::format("an answer within {:.1f} s",
                                             static_cast<double>(timeout.count()) / 1e3),
                     .advice = "see whether the network to the machine of rank 0 is whole"});
}

namespace {

// Listens on the loopback interface alone: the store does not authenticate anybody.
int listening_socket() {
  const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (made >= 0 && ::bind(made, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
      ::listen(made, SOMAXCONN) == 0)
    return made;
  const int error = errno;
  if (made >= 0) ::close(made);
  throw DeviceError({.where = kStart,
                     .what = "no port can be opened",
                     .seen = std::strerror(error),
                     .accepted = "a free port of this machine",
                     .advice = "ss -ltn shows those that are taken"});
}

}  // namespace

ServedStore serve_store() {
  c10d::TCPStoreOptions options;
  options.masterListenFd = listening_socket();  // TCPStore closes it
  sockaddr_in address{};
  socklen_t size = sizeof address;
  ::getsockname(*options.masterListenFd, reinterpret_cast<sockaddr*>(&address), &size);
  options.port = ntohs(address.sin_port);
  options.isServer = true;
  options.waitWorkers = false;
  const BlocksSigpipe in_its_threads;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    const int port = store->getPort();
    return {std::make_shared<C10dStore>(std::move(store), "the store of this process", -1, true),
            port};
  } catch (const std::exception& error) {
    throw DeviceError({.where = kStart,
                       .what = "no port can be opened",
                       .seen = first_line(error),
                       .accepted = "a free port of this machine",
                       .advice = "ss -ltn shows those that are taken"});
  }
}

std::shared_ptr<Store> file_store(const std::string& path, int world_size) {
  return std::make_shared<C10dStore>(c10::make_intrusive<c10d::FileStore>(path, world_size),
                                     "the store in " + path, -1, false);
}

std::shared_ptr<Store> thread_store() {
  return std::make_shared<C10dStore>(c10::make_intrusive<c10d::HashStore>(),
                                     "the store of this process", -1, false);
}

std::unique_ptr<Collectives> gloo(const std::shared_ptr<Store>& store, const std::string& prefix,
                                  int rank, int world_size, std::chrono::milliseconds timeout) {
  const auto* of_c10d = dynamic_cast<const C10dStore*>(store.get());
  TORCH_INTERNAL_ASSERT(of_c10d);
  const BlocksSigpipe in_its_threads;
  try {
    return std::make_unique<C10dCollectives>(c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>(prefix + "gloo", of_c10d->get()), rank, world_size,
        c10d::ProcessGroupGloo::Options::create_default(timeout)));
  } catch (const std::exception& error) {
    throw DeviceError({.where = kStart,
                       .what = "the ranks cannot connect",
                       .seen = first_line(error),
                       .accepted = "a network interface on which every rank reaches every other",
                       .advice = "name it with GLOO_SOCKET_IFNAME (ip -brief address lists them)"});
  }
}

std::unique_ptr<Collectives> nccl(const std::shared_ptr<Store>& store, const std::string& prefix,
                                  int rank, int world_size, std::chrono::milliseconds timeout,
                                  at::Device device, const Nccl& library) {
  if (!library.make)
    throw DeviceError({.where = kStart,
                       .what = "there is no NCCL for tensors of GPUs",
                       .seen = library.why,
                       .accepted = "tensors of the CPU, which Gloo serves",
                       .advice = "train on the CPU, or on one GPU; demi that is configured with "
                                 "-DDEMI_NCCL=ON has NCCL, or says what is missing"});
  const auto* of_c10d = dynamic_cast<const C10dStore*>(store.get());
  TORCH_INTERNAL_ASSERT(of_c10d);
  const std::string keys = prefix + "nccl";
  const BlocksSigpipe in_its_threads;
  try {
    return std::make_unique<NcclCollectives>(
        c10::intrusive_ptr<c10d::Backend>::reclaim(
            library.make(*of_c10d->get(), keys.c_str(), rank, world_size, timeout.count())),
        device);
  } catch (const std::exception& error) {
    throw DeviceError({.where = kStart,
                       .what = "NCCL does not start",
                       .seen = first_line(error),
                       .accepted = "one GPU for each rank",
                       .advice = "NCCL_DEBUG=INFO says more"});
  }
}

#else

namespace {
[[noreturn]] void no_collectives() {
  throw DeviceError({.where = "distributed.start",
                     .what = "this LibTorch has no collectives",
                     .seen = "it was built without USE_DISTRIBUTED",
                     .accepted = "one rank",
                     .advice = "build demi with a LibTorch that has them, or run one process"});
}
}  // namespace

std::shared_ptr<Store> tcp_store(const StoreAddress&, bool, std::chrono::milliseconds) {
  no_collectives();
}
std::shared_ptr<Store> reach_store(const StoreAddress&, bool, std::chrono::milliseconds,
                                   std::chrono::milliseconds) {
  no_collectives();
}
ServedStore serve_store() { no_collectives(); }
std::shared_ptr<Store> file_store(const std::string&, int) { no_collectives(); }
std::shared_ptr<Store> thread_store() { no_collectives(); }
std::unique_ptr<Collectives> gloo(const std::shared_ptr<Store>&, const std::string&, int, int,
                                  std::chrono::milliseconds) {
  no_collectives();
}
std::unique_ptr<Collectives> nccl(const std::shared_ptr<Store>&, const std::string&, int, int,
                                  std::chrono::milliseconds, at::Device, const Nccl&) {
  no_collectives();
}

#endif

}  // namespace demi::distributed
