#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "demi/core/error.h"
#include "demi/core/export.h"

namespace torch::nn {
class Module;
}

namespace demi {

/// Options of DataParallel.
struct DataParallelOptions {
  /// The devices of the replicas, one for each replica. The first is the module's own device; a
  /// device may be named more than once. Empty: all CUDA devices.
  std::vector<c10::Device> devices = {};
  /// The device of the output. Default: the first of `devices`.
  std::optional<c10::Device> output_device = std::nullopt;
  /// The dimension of inputs and outputs that is divided among the replicas.
  std::int64_t dim = 0;
  /// Makes one more module of the same structure, on any device and with any values. Needed for
  /// modules without clone(): those that do not derive from torch::nn::Cloneable.
  std::function<std::shared_ptr<torch::nn::Module>()> make_replica = nullptr;
};

/// An exception that a replica threw: the message names replica and device, and
/// std::rethrow_if_nested gives the exception itself. An exception of LibTorch's keeps its type,
/// and gets replica and device as a line of its message.
class DEMI_API ReplicaError : public Error {
 public:
  using Error::Error;
};

/// The replicas of a module. DataParallel is for users.
class DEMI_API Replicas {
 public:
  /// Computes one replica's output of its part of the inputs.
  using Forward = std::function<at::Tensor(torch::nn::Module&, const std::vector<at::Tensor>&)>;
  Replicas(std::shared_ptr<torch::nn::Module> module, DataParallelOptions options);
  ~Replicas();
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;
  /// The output for the whole batch: each replica gets its part of `inputs`, and the parts of the
  /// output are joined along `dim`, on the output device.
  at::Tensor forward(const std::vector<at::Tensor>& inputs, const Forward& forward);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// One module on several devices of this process, as torch.nn.DataParallel in Python: each replica
/// gets a part of the batch.
///
///     Net model;                                                   // on cuda:0
///     demi::DataParallel parallel(model);                          // all GPUs
///     demi::optim::AdamW optimizer(model->parameters(), 1e-3);
///     ...
///     {
///       demi::Autocast region(torch::kCUDA, torch::kHalf);
///       loss = torch::cross_entropy_loss(parallel(inputs), targets);
///     }
///     scaler.scale(loss).backward();                               // adds to the module's .grad
///
/// The first replica is the module itself and runs in the calling thread, the others in threads of
/// their own, which have the caller's thread state: autocast, grad mode, inference mode, current
/// streams, subnormal flushing. (In torch::nn::parallel::data_parallel autocast is off in all
/// threads but the caller's.) Replicas on the module's device share its parameters, those on other
/// devices get copies in each forward. Parameters are owned (weights::own) until this is destroyed,
/// so each is cast once for all replicas that share it.
///
/// `Holder` is a torch::nn::ModuleHolder or a std::shared_ptr to a module whose forward takes
/// tensors and returns one.
template <class Holder>
class DataParallel {
 public:
  /// Makes the replicas; LibTorch's random numbers stay where they were. Throws UsageError if the
  /// module is not on the first device or cannot be copied, and DeviceError for devices that are
  /// not there.
  explicit DataParallel(Holder module, DataParallelOptions options = {})
      : module_(std::move(module)), replicas_(pointer(module_), std::move(options)) {}

  /// Inputs have the same size N in `dim`; undefined ones go to every replica as they are. Each
  /// replica gets ceil(N / replicas) rows, the last fewer; if there are fewer rows than replicas,
  /// fewer replicas run, and one if there are none. Returns the outputs one behind the other in
  /// `dim`, on the output device; scalars become a vector of one element a replica.
  ///
  /// Returns when all replicas have returned. Throws the exception of the first replica that threw
  /// (ReplicaError), and UsageError for inputs that cannot be divided. One thread at a time.
  template <class... Inputs>
  at::Tensor forward(const Inputs&... inputs) {
    return replicas_.forward({inputs...},
                             [](torch::nn::Module& replica, const std::vector<at::Tensor>& parts) {
                               return call(replica, parts, std::index_sequence_for<Inputs...>());
                             });
  }
  /// Same as forward().
  template <class... Inputs>
  at::Tensor operator()(const Inputs&... inputs) {
    return forward(inputs...);
  }

  /// The module itself: its parameters are those to optimize and to save.
  const Holder& module() const { return module_; }

 private:
  using Module = std::remove_reference_t<decltype(*std::declval<Holder&>())>;
  static std::shared_ptr<torch::nn::Module> pointer(const Holder& module) {
    if constexpr (requires { module.ptr(); })
      return module.ptr();
    else
      return module;
  }
  template <std::size_t... I>
  static at::Tensor call(torch::nn::Module& replica, const std::vector<at::Tensor>& parts,
                         std::index_sequence<I...>) {
    return dynamic_cast<Module&>(replica).forward(parts[I]...);
  }

  Holder module_;
  Replicas replicas_;
};

}  // namespace demi
