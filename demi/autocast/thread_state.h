#pragma once

#include <memory>

#include "demi/core/export.h"

namespace demi {

/// The autocast state of a thread, for worker threads (std::thread, at::parallel_for). Without it,
/// autocast is off there and dtypes are at their defaults. Threads of at::launch and autograd's
/// threads for devices get the state by themselves, with policy and kept copies of weights.
///
///     const demi::ThreadState state;                       // in the thread that is in a region
///     std::thread worker([state] { demi::ThreadState::Guard guard(state); ... });
///
/// A value type. May be used in any number of threads, also after the region was left. Holds all
/// that at::ThreadLocalState holds (grad mode, inference mode, ...), and the region's op policy.
class DEMI_API ThreadState {
 public:
  /// Captures the state of the calling thread.
  ThreadState();

  /// Gives the calling thread the captured state until the end of the scope. Each weight is cast
  /// once in that scope.
  class DEMI_API Guard {
   public:
    [[nodiscard]] explicit Guard(const ThreadState& state);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    struct Saved;
    std::unique_ptr<Saved> saved_;
  };

 private:
  struct Captured;
  std::shared_ptr<const Captured> captured_;
};

}  // namespace demi
