#pragma once

#include <c10/core/SafePyObject.h>

#include <memory>

namespace demi::weights {

/// State of a thread that the threads get which work for it: LibTorch carries it along with its own
/// (at::ThreadLocalState), from at::launch to a thread of its pool, and from backward() to
/// autograd's thread of each device. A snapshot that does not change, or a thing that locks for
/// itself.
///
/// It travels as one of the objects that LibTorch keeps by name for Python, and holds none of
/// Python's. c10::ThreadLocalDebugInfo is meant for such things, but what it holds must be left in
/// the reverse order of entering, which a profiler that is stopped inside of a region breaks.
struct HandedOn : c10::SafePyObject {
  HandedOn() : SafePyObject(nullptr, nullptr) {}
};

/// Null where there is none of that name, and in a thread that is being torn down.
std::shared_ptr<HandedOn> handed_on(const char* name);

/// Null takes it away. Does nothing in a thread that is being torn down.
void hand_on(const char* name, std::shared_ptr<HandedOn> object);

}  // namespace demi::weights
