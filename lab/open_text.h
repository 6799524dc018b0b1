#pragma once

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

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

/// The rest of a stream. nullopt if a read fails: errno says why. (An iterator throws an unexpected
/// exception then, and getline takes a failure for the end.)
inline std::optional<std::string> rest_of(std::istream& in) {
  std::string all;
  char block[1 << 16];
  errno = 0;
  do {
    in.read(block, sizeof block);
    all.append(block, static_cast<std::size_t>(in.gcount()));
  } while (in);
  return in.bad() ? std::nullopt : std::optional(std::move(all));
}

/// "UTF-16" or "UTF-32" of a text that begins with that byte order mark, or in which every second
/// byte is 0 as far as it is looked at; else "". Excel and PowerShell write such texts.
inline std::string_view wide_encoding_of(std::string_view text) {
  using namespace std::string_view_literals;
  if (text.starts_with("\xFF\xFE\0\0"sv) || text.starts_with("\0\0\xFE\xFF"sv)) return "UTF-32";
  if (text.starts_with("\xFF\xFE"sv) || text.starts_with("\xFE\xFF"sv)) return "UTF-16";
  const std::string_view first = text.substr(0, 64 - 64 % 2);
  if (first.size() < 4) return "";
  for (const std::size_t parity : {0, 1}) {
    std::size_t zeros = 0, others = 0;
    for (std::size_t i = 0; i < first.size(); ++i)
      (i % 2 == parity ? zeros : others) += first[i] == '\0' ? 1 : 0;
    if (zeros == (first.size() + (parity == 0 ? 1 : 0)) / 2 && others == 0) return "UTF-16";
  }
  return "";
}

constexpr auto kToUtf8 = "convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW (UTF-32 likewise)";

}  // namespace demi::lab
