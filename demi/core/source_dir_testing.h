#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>

namespace demi {

/// The checkout whose files the tests read: DEMI_SOURCE_DIR, which ctest sets, else the nearest
/// folder above the current one that holds demi's sources. (__FILE__ may name another checkout,
/// whose compiled file the compiler's cache reused.)
inline std::filesystem::path source_dir() {
  if (const char* given = std::getenv("DEMI_SOURCE_DIR")) return given;
  for (auto dir = std::filesystem::current_path();; dir = dir.parent_path()) {
    if (std::filesystem::exists(dir / "demi" / "demi.h")) return dir;
    if (dir == dir.root_path()) break;
  }
  throw std::runtime_error("run this by ctest, or set DEMI_SOURCE_DIR to demi's checkout");
}

}  // namespace demi
