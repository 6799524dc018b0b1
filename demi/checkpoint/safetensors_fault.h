#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "demi/core/error.h"
#include "demi/core/export.h"

namespace demi::checkpoint {

/// A file that the system does not let be read (no permission, a failing disk): its bytes may be
/// whole.
class UnreadableError : public DataError {
 public:
  using DataError::DataError;
};

/// The text for an error message: shortened, saying how long it was, and with its control
/// characters escaped (\x1b).
DEMI_API std::string excerpt(std::string_view text);

/// Throws errors about one file.
struct Fault {
  std::filesystem::path path;
  std::string_view where = "checkpoint.load_safetensors";

  /// Throws DataError. `found` is shortened, because it may be all of a damaged header.
  [[noreturn]] DEMI_API void operator()(std::string_view what, uint64_t offset,
                                        std::string_view found, std::string_view expected) const;
};

}  // namespace demi::checkpoint
