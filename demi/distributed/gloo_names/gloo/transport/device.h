#pragma once
// gloo/algorithm.h says why this file is here.
#include <memory>

namespace gloo::transport {
class Device;
class UnboundBuffer;
}  // namespace gloo::transport
