#pragma once

#include <cstdint>
#include <string>

namespace demi::loop {

/// Whether work of a device is recorded in a graph once and replayed from then on, so that the host
/// launches one graph in place of each kernel.
enum class GraphMode {
  off,        // it is not
  automatic,  // where it can be; what cannot runs plainly, and a warning says why
  on,         // UsageError where it cannot be
};

/// What has become of a GraphMode since an object was made.
struct GraphCounts {
  std::int64_t replays = 0;   // of graphs
  std::int64_t recorded = 0;  // graphs
  /// The device's memory that these graphs and others in the same memory hold now, besides what
  /// plain runs have taken: the peak of the largest one.
  std::int64_t bytes = 0;
  /// Why work runs plainly: all, or the first kind of it that cannot be recorded. Empty: none does,
  /// or the mode is off.
  std::string refusal;
};

}  // namespace demi::loop
