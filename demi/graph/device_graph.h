#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "demi/core/export.h"

namespace demi::graph {

/// Work of a device that is recorded once and replayed. One thread at a time, and the one that
/// begins a recording ends or abandons it.
class DEMI_API DeviceGraph {
 public:
  DeviceGraph() = default;
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;
  virtual ~DeviceGraph();

  /// Begins to record: work of the device's current stream, which is not its default stream, is
  /// recorded and not run. Memory that is allocated for it belongs to the graph. Call it once.
  /// Throws DeviceError.
  virtual void begin() = 0;
  /// Ends the recording. Throws DeviceError, with the device's own complaint, if what was recorded
  /// cannot be replayed; the graph is then good for nothing.
  virtual void end() = 0;
  /// Ends a recording in which something failed, and gives its memory back. Does nothing if none
  /// has begun.
  virtual void abandon() noexcept = 0;
  /// Runs what was recorded on the device's current stream. Does not wait for it. Throws
  /// DeviceError.
  virtual void replay() = 0;
};

/// Makes graphs. Tests without a GPU hand in another source (recorded_graph.h).
class DEMI_API GraphSource {
 public:
  virtual ~GraphSource();
  /// Why work of this device cannot be recorded; empty if it can.
  virtual std::string obstacle(c10::Device device) const = 0;
  /// `beside`: they share memory, and are never replayed at the same time. Null: it has memory of
  /// its own. Throws UsageError if there is an obstacle.
  virtual std::unique_ptr<DeviceGraph> make(c10::Device device,
                                            const DeviceGraph* beside) const = 0;
};

/// LibTorch's CUDA graphs, from the plugin libdemi_graph.so.
DEMI_API const GraphSource& machine_graphs();
/// Another source in their place, for tests; null: none. It outlives its use.
DEMI_API void set_machine_graphs(const GraphSource* source);

}  // namespace demi::graph
