#include "demi/core/libtorch.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdint>

#include "demi/core/error.h"

// LibTorch's own version in the bytes 7 (major), 6 (minor) and 5 (patch), of its C interface, which
// is stable (torch/csrc/inductor/aoti_torch/c/shim.h). Weak: an older LibTorch, or none, has none.
extern "C" [[gnu::weak]] uint64_t aoti_torch_abi_version();

namespace demi {
namespace {

constexpr auto kWhere = "core.require_libtorch";

std::string minor_version(std::string_view version) {
  return std::string(version.substr(0, version.find('.', version.find('.') + 1)));
}

int add_if_libtorch(dl_phdr_info* library, std::size_t, void* files) {
  const std::string_view path = library->dlpi_name;
  const std::string_view name = path.substr(path.find_last_of('/') + 1);
  // libtorch_cpu.so, or libtorch_cpu-1a2b3c4d.so where a packager has renamed it.
  if (name.starts_with("libtorch_cpu") && name.find(".so") != name.npos)
    static_cast<std::vector<std::string>*>(files)->emplace_back(path);
  return 0;
}

}  // namespace

std::string_view compiled_libtorch() { return DEMI_COMPILED_LIBTORCH; }

LoadedLibTorch loaded_libtorch() {
  LoadedLibTorch loaded;
  dl_iterate_phdr(&add_if_libtorch, &loaded.files);
  if (aoti_torch_abi_version) {
    const uint64_t version = aoti_torch_abi_version();
    const auto byte = [&](int i) { return std::to_string(version >> 8 * i & 0xff); };
    loaded.version = byte(7) + "." + byte(6) + "." + byte(5);
    Dl_info origin{};
    if (dladdr(reinterpret_cast<const void*>(&aoti_torch_abi_version), &origin) && origin.dli_fname)
      loaded.file = origin.dli_fname;
  } else if (!loaded.files.empty()) {
    loaded.file = loaded.files.front();
  }
  return loaded;
}

void check_libtorch(std::string_view compiled, const LoadedLibTorch& loaded) {
  if (loaded.files.size() > 1) {
    std::string seen;
    for (const std::string& file : loaded.files) seen += (seen.empty() ? "" : ", ") + file;
    refuse({.where = kWhere,
            .what = "two LibTorches are loaded, whose operators, modes and tensors know nothing of "
                    "each other",
            .seen = seen,
            .accepted = "one",
            .advice = "have everything in the process use the same: ldd shows which one a program "
                      "or library takes, LD_LIBRARY_PATH and LD_PRELOAD change it"});
  }
  if (loaded.file.empty() || minor_version(loaded.version) == minor_version(compiled)) return;
  const std::string wanted = minor_version(compiled);
  refuse(
      {.where = kWhere,
       .what = "demi was compiled against LibTorch " + std::string(compiled) +
               ", and one of another minor version is loaded, whose C++ interface differs",
       .seen = (loaded.version.empty() ? "older than 2.11" : loaded.version) + ", " + loaded.file,
       .accepted = wanted,
       .advice = "let LD_LIBRARY_PATH begin with the folder of a LibTorch " + wanted +
                 ", or build demi with this one"});
}

void require_libtorch() {
  // A static object whose initialiser throws is initialised again by the next call.
  static const bool is_one = (check_libtorch(compiled_libtorch(), loaded_libtorch()), true);
  (void)is_one;
}

}  // namespace demi
