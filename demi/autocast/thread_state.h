#pragma once

#include <memory>

#include "demi/core/export.h"

namespace demi {

/// The autocast state of a thread, to be taken over by a worker thread, where autocast is off and
/// dtypes are at their defaults otherwise (std::thread, at::parallel_for). at::launch and
/// autograd's threads for devices take it over by themselves, policy and kept copies of weights
/// included.
///
///     const demi::ThreadState state;                       // in the thread that is in a region
///     std::thread worker([state] { demi::ThreadState::Guard guard(state); ... });
///
/// A value; may be used in any number of threads, also after the region was left. Carries what
/// at::ThreadLocalState does (grad mode, inference mode ... too), and the region's op policy.
class DEMI_API ThreadState {
 public:
  ThreadState();

  /// This thread runs as the captured one did, until the end of the scope. Weights are cast once in
  /// it.
  class DEMI_API Guard {
   public:
    explicit Guard(const ThreadState& state);
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
