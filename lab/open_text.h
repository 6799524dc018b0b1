#pragma once

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "demi/core/error.h"

namespace demi::lab {

/// A text file that an argument names. Throws DataError, whose `seen` is why it cannot be read.
inline std::ifstream open_text(const std::string& file, Complaint complaint) {
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  const int error = errno;
  std::error_code code;
  const bool is_folder = std::filesystem::is_directory(file, code);
  if (in && !is_folder) return in;
  complaint.seen = is_folder ? "a folder" : std::strerror(error);
  throw DataError(complaint);
}

}  // namespace demi::lab
