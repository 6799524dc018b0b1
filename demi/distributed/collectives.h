#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>

namespace demi::distributed {

enum class Reduction;

/// The first line of an exception's message, without LibTorch's stack.
std::string first_line(const std::exception& error);

/// A collective under way.
class Collective {
 public:
  virtual ~Collective() = default;
  /// Calls `done` once, here or from another thread, with the error if there is one.
  virtual void on_end(std::function<void(std::exception_ptr)> done) = 0;
  /// Whether the device has done its part, too. After on_end's call. Throws if it failed.
  virtual bool is_over() { return true; }
  /// Makes the current stream of the tensor's device wait for the result. After the end.
  virtual void synchronize() = 0;
};

/// c10d's backend behind an interface without its headers. All ranks call the same functions in the
/// same order.
class Collectives {
 public:
  virtual ~Collectives() = default;
  /// Reduces the tensor in place. It must be contiguous.
  virtual std::unique_ptr<Collective> all_reduce(const at::Tensor& tensor, Reduction reduction) = 0;
  virtual std::unique_ptr<Collective> broadcast(const at::Tensor& tensor, int root) = 0;
  /// `all`: every rank's `own`, one behind the other by rank. Both have one dimension. `own` may be
  /// this rank's part of `all`.
  virtual std::unique_ptr<Collective> all_gather(const at::Tensor& all, const at::Tensor& own) = 0;
  /// Ends what is under way on a device, with an error. Nothing can begin afterwards.
  virtual void abort() {}
};

}  // namespace demi::distributed
