#include "demi/graph/graph_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include "demi/core/cuda_library.h"
#include "demi/core/libtorch.h"

namespace demi::graph {
namespace {

constexpr const char* kName = "libdemi_graph.so";
constexpr std::string_view kMissing = DEMI_GRAPH_MISSING;  // "": it was built

std::string_view minor_version(std::string_view version) {
  return version.substr(0, version.find('.', version.find('.') + 1));
}

// A test program that holds this code finds the library by its name, in the build's folder.
std::string beside_this_library() {
  Dl_info info{};
  if (!::dladdr(reinterpret_cast<const void*>(&load_graph_library), &info) || !info.dli_fname)
    return kName;
  const std::string file = info.dli_fname, beside = file.substr(0, file.rfind('/') + 1) + kName;
  return ::access(beside.c_str(), F_OK) == 0 ? beside : kName;
}

GraphLibrary find_graph_library() {
  if (!kMissing.empty())
    return {nullptr, fmt::format("demi was built without {}: {}", kName, kMissing)};
  const CudaLibrary& cuda = load_cuda();
  if (!cuda.loaded) return {nullptr, cuda.reason};
  return open_graph_library(beside_this_library(), loaded_libtorch().version);
}

}  // namespace

GraphLibrary open_graph_library(const std::string& file, std::string_view libtorch) {
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return {nullptr, fmt::format("{} cannot be opened: {}", kName, ::dlerror())};
  const auto entry =
      reinterpret_cast<const GraphPlugin* (*)()>(::dlsym(library, "demi_graph_plugin"));
  if (!entry || entry()->bytes != sizeof(GraphPlugin))
    return {nullptr, fmt::format("{} is of another build", kName)};
  const GraphPlugin& plugin = *entry();
  if (minor_version(plugin.libtorch) != minor_version(libtorch))
    return {nullptr, fmt::format("{} was compiled with LibTorch {}, and {} is loaded", kName,
                                 plugin.libtorch, libtorch)};
  const int header = plugin.cuda_header / 1000, cuda = plugin.cuda_of_libtorch() / 1000;
  if (header != cuda)
    return {nullptr, fmt::format("{} was compiled with the headers of CUDA {}, and LibTorch with "
                                 "those of {}",
                                 kName, header, cuda)};
  return {&plugin, ""};
}

const GraphLibrary& load_graph_library() {
  static const GraphLibrary library = find_graph_library();
  return library;
}

}  // namespace demi::graph
