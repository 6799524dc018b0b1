#include "demi/weights/cast_turns.h"

#include <utility>

namespace demi::weights {
namespace {

constexpr const char* kTurnsName = "demi.weights.turns";

// Recursive: an observer of a cast may use weights itself.
struct Turns : InheritedState {
  std::recursive_mutex mutex;
};

}  // namespace

CastTurns::CastTurns() : outer_(inherited_state(kTurnsName)) {
  set_inherited_state(kTurnsName, std::make_shared<Turns>());
}

CastTurns::~CastTurns() { set_inherited_state(kTurnsName, std::move(outer_)); }

Turn::Turn() : turns_(inherited_state(kTurnsName)) {
  if (turns_) lock_ = std::unique_lock(static_cast<Turns&>(*turns_).mutex);
}

}  // namespace demi::weights
