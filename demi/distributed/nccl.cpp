#include "demi/distributed/nccl.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <string_view>

#include "demi/core/cuda_library.h"

namespace demi::distributed {
namespace {

constexpr const char* kName = "libdemi_nccl.so";
constexpr std::string_view kMissing = DEMI_NCCL_MISSING;  // "": it was built

std::string text_of(std::uint64_t version) {
  return fmt::format("{}.{}.{}", version >> 32, version >> 16 & 0xffff, version & 0xffff);
}

std::string beside_this_library() {
  Dl_info info{};
  if (!::dladdr(reinterpret_cast<const void*>(&load_nccl), &info) || !info.dli_fname) return kName;
  const std::string file = info.dli_fname;
  return file.substr(0, file.rfind('/') + 1) + kName;
}

std::atomic<const Nccl*> stand_in = nullptr;

Nccl find_nccl() {
  if (!kMissing.empty()) return {nullptr, fmt::format("demi was built without it: {}", kMissing)};
  const CudaLibrary& cuda = load_cuda();
  if (!cuda.loaded) return {nullptr, cuda.reason};
  return open_nccl(beside_this_library());
}

}  // namespace

Nccl open_nccl(const std::string& file) {
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return {nullptr, fmt::format("{} cannot be opened: {}", kName, ::dlerror())};
  const auto entry =
      reinterpret_cast<const NcclPlugin* (*)()>(::dlsym(library, "demi_nccl_plugin"));
  if (!entry) return {nullptr, fmt::format("{} is of another build", kName)};
  const NcclPlugin& plugin = *entry();
  if (plugin.header != plugin.libtorch)
    return {nullptr, fmt::format("{} was compiled with the header of NCCL {}, and LibTorch with "
                                 "that of {}",
                                 kName, text_of(plugin.header), text_of(plugin.libtorch))};
  return {plugin.make, ""};
}

void stand_in_for_nccl(const Nccl* nccl) { stand_in = nccl; }

bool is_for_nccl(c10::Device device) {
  const Nccl* other = stand_in;
  return device.type() == (other ? other->device : c10::kCUDA);
}

const Nccl& load_nccl() {
  if (const Nccl* other = stand_in) return *other;
  static const Nccl nccl = find_nccl();
  return nccl;
}

}  // namespace demi::distributed
