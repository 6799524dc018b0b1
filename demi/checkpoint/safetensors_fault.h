#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace demi::checkpoint {

/// The text, cut to what an error message can hold; a cut text says how long it was.
std::string excerpt(std::string_view text);

/// Says what is wrong with a safetensors file, and at which offset.
struct Fault {
  const std::filesystem::path& path;

  /// Throws DataError. `found` is cut: it may be all of a damaged header.
  [[noreturn]] void operator()(std::string_view what, uint64_t offset, std::string_view found,
                               std::string_view expected) const;
};

}  // namespace demi::checkpoint
