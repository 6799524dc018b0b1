#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "demi/core/export.h"
#include "demi/graph/cuda/plugin.h"
#include "demi/graph/device_graph.h"

namespace demi::graph {

/// LibTorch's CUDA graphs, which are opened at run time: libdemi_graph.so in libdemi's folder.
struct GraphLibrary {
  const GraphPlugin* plugin = nullptr;
  std::string why;  // the reason that there is none; empty if there is
};

/// Opens it at the first call, if LibTorch's part for CUDA can be. Any thread.
DEMI_API const GraphLibrary& load_graph_library();

/// The library in `file`. It is declined if it was compiled with another minor version of LibTorch
/// than `libtorch`, the one that is loaded, or with the headers of another CUDA than LibTorch was.
DEMI_API GraphLibrary open_graph_library(const std::string& file, std::string_view libtorch);

/// Graphs of what `library` gives, which is asked for at each call that concerns a CUDA device.
DEMI_API std::unique_ptr<GraphSource> graphs_of(std::function<GraphLibrary()> library);

}  // namespace demi::graph
