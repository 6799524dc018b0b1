#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <string>

#include "demi/core/export.h"
#include "demi/distributed/collectives.h"
#include "demi/distributed/launch.h"
#include "demi/distributed/nccl.h"
#include "demi/distributed/store.h"

// The only place that calls LibTorch's collectives. Where LibTorch has none, each function throws
// DeviceError.
namespace demi::distributed {

/// TCPStore. `serve`: this process opens the port. Waits until the store answers.
DEMI_API std::shared_ptr<Store> tcp_store(const StoreAddress& address, bool serve,
                                          std::chrono::milliseconds timeout);
/// A tcp_store() that is returned, or throws, within `timeout` even if the network fails. Throws
/// DeviceError earlier if something that is no store has accepted connections for `until_taken`.
DEMI_API std::shared_ptr<Store> reach_store(
    const StoreAddress& address, bool serve, std::chrono::milliseconds timeout,
    std::chrono::milliseconds until_taken = std::chrono::seconds(20));
/// A TCPStore that this process serves on a port of 127.0.0.1 that the system chooses, for ranks
/// that it starts. Other machines do not reach it.
struct ServedStore {
  std::shared_ptr<Store> store;
  int port = 0;
};
DEMI_API ServedStore serve_store();
/// FileStore, for ranks of one machine or of a file system that they share.
std::shared_ptr<Store> file_store(const std::string& path, int world_size);
/// A store for ranks that are threads of this process.
DEMI_API std::shared_ptr<Store> thread_store();

/// Gloo over the interfaces of GLOO_SOCKET_IFNAME, or that of the host's name. `prefix`:
/// of its keys. `timeout`: of the connection and of each collective.
DEMI_API std::unique_ptr<Collectives> gloo(const std::shared_ptr<Store>& store,
                                           const std::string& prefix, int rank, int world_size,
                                           std::chrono::milliseconds timeout);
/// NCCL, for tensors of `device`, a CUDA device: each rank's is another one. Waits for all ranks.
/// Throws DeviceError with the reason if there is none or if it does not start. `timeout`: of each
/// collective, after which NCCL's watchdog ends the process.
DEMI_API std::unique_ptr<Collectives> nccl(const std::shared_ptr<Store>& store,
                                           const std::string& prefix, int rank, int world_size,
                                           std::chrono::milliseconds timeout, at::Device device,
                                           const Nccl& library = load_nccl());
/// The collectives of a single rank: every tensor is the result already.
std::unique_ptr<Collectives> alone();

}  // namespace demi::distributed
