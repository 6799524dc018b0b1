#pragma once

#include <cstddef>

namespace demi::graph {

/// What one graph is to the plugin.
struct Recording;

/// The interface of libdemi_graph.so. Its symbol demi_graph_plugin is a function without arguments
/// that returns a const GraphPlugin*. What is not noexcept may throw, in LibTorch's words.
struct GraphPlugin {
  std::size_t bytes = sizeof(GraphPlugin);  // of this struct, in the plugin's build
  const char* libtorch = nullptr;           // the LibTorch that it was compiled with: "2.15.0"
  int cuda_header = 0;                      // the CUDA that it was compiled with: 13000
  int (*cuda_of_libtorch)() = nullptr;      // that LibTorch was compiled with
  int (*devices)() = nullptr;               // how many there are
  /// `device`: its index, -1 the current one. `beside`: both allocate from one pool; null: none.
  Recording* (*make)(int device, const Recording* beside) = nullptr;
  /// Records the device's current stream. The thread that calls `begin` calls `end`.
  void (*begin)(Recording& recording) = nullptr;
  void (*end)(Recording& recording) = nullptr;
  /// After `begin`, however that or `end` went: the stream can be used, the pool is given back.
  void (*abandon)(Recording& recording) noexcept = nullptr;
  void (*replay)(Recording& recording) = nullptr;
  /// Abandons it if it has begun and not ended.
  void (*destroy)(Recording* recording) noexcept = nullptr;
};

}  // namespace demi::graph
