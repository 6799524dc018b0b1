#include "demi/weights/cast_turns.h"

#include <utility>

namespace demi::weights {
namespace {

constexpr const char* kTurnsName = "demi.weights.turns";

// Recursive: whatever observes a cast may use weights itself.
struct Turns : HandedOn {
  std::recursive_mutex mutex;
};

}  // namespace

CastTurns::CastTurns() : outer_(handed_on(kTurnsName)) {
  hand_on(kTurnsName, std::make_shared<Turns>());
}

CastTurns::~CastTurns() { hand_on(kTurnsName, std::move(outer_)); }

Turn::Turn() : turns_(handed_on(kTurnsName)) {
  if (turns_) lock_ = std::unique_lock(static_cast<Turns&>(*turns_).mutex);
}

}  // namespace demi::weights
