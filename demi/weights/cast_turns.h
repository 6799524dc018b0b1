#pragma once

#include <memory>
#include <mutex>

#include "demi/core/export.h"
#include "demi/weights/inherited_state.h"

namespace demi::weights {

/// Makes threads that work for this one cast one after the other until the end of the scope: of
/// several that want the same copy of an owned parameter at once, one casts and the others take its
/// copy. Otherwise each of them casts, and one of the casts is kept. Threads work for this one if
/// they have its state (ThreadState, at::launch).
class DEMI_API CastTurns {
 public:
  [[nodiscard]] CastTurns();
  ~CastTurns();
  CastTurns(const CastTurns&) = delete;
  CastTurns& operator=(const CastTurns&) = delete;

 private:
  std::shared_ptr<InheritedState> outer_;
};

/// The right to cast, until it is destroyed. Empty if this thread and no thread that it works for
/// has a CastTurns. A thread may hold several.
class Turn {
 public:
  Turn();

 private:
  std::shared_ptr<InheritedState> turns_;
  std::unique_lock<std::recursive_mutex> lock_;
};

}  // namespace demi::weights
