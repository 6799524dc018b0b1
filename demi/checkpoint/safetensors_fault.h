#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace demi::checkpoint {

/// The text, shortened for an error message; a shortened text says how long it was.
std::string excerpt(std::string_view text);

/// Throws errors about one safetensors file.
struct Fault {
  const std::filesystem::path& path;

  /// Throws DataError. `found` is shortened, because it may be all of a damaged header.
  [[noreturn]] void operator()(std::string_view what, uint64_t offset, std::string_view found,
                               std::string_view expected) const;
};

}  // namespace demi::checkpoint
