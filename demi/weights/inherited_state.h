#pragma once

#include <c10/core/SafePyObject.h>

#include <memory>

namespace demi::weights {

/// State of a thread that is passed on to the threads that work for it. LibTorch carries it along
/// with its own state (at::ThreadLocalState): from at::launch to a thread of its pool, and from
/// backward() to autograd's thread of each device. Either it does not change, or it locks itself.
///
/// It travels as one of the objects that LibTorch keeps by name for Python, but holds no Python
/// object. c10::ThreadLocalDebugInfo is meant for such state, but its entries must be left in the
/// reverse order of entering, which a profiler that is stopped inside a region violates.
struct InheritedState : c10::SafePyObject {
  InheritedState() : SafePyObject(nullptr, nullptr) {}
};

/// The object of that name in this thread. Null if there is none, and in a thread that is being
/// torn down.
std::shared_ptr<InheritedState> inherited_state(const char* name);

/// Sets the object of that name for this thread and those that work for it; null removes it. Does
/// nothing in a thread that is being torn down.
void set_inherited_state(const char* name, std::shared_ptr<InheritedState> object);

}  // namespace demi::weights
