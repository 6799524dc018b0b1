#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "demi/core/crc32.h"
#include "demi/imported/zip_archive.h"

namespace demi::imported {

using Contents = std::map<std::string, std::string>;

inline void put(std::string& bytes, std::uint64_t number, int count) {
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(number >> (8 * i));
}

/// An entry's fields that the local header and the list of records share (APPNOTE 4.3.7, 4.3.12).
inline void put_entry(std::string& bytes, const std::string& name, const std::string& content) {
  put(bytes, 20, 2);
  put(bytes, 0, 2);
  put(bytes, 0, 2);
  put(bytes, 0, 4);
  put(bytes, crc32(content), 4);
  put(bytes, content.size(), 4);
  put(bytes, content.size(), 4);
  put(bytes, name.size(), 2);
  put(bytes, 0, 2);
}

/// A zip archive of these files, stored.
inline std::string zip_of(const Contents& contents) {
  using namespace std::string_literals;
  std::string bytes, list;
  for (const auto& [name, content] : contents) {
    list += "PK\x01\x02"s;
    put(list, 20, 2);
    put_entry(list, name, content);
    put(list, 0, 2);
    put(list, 0, 2);
    put(list, 0, 2);
    put(list, 0, 4);
    put(list, bytes.size(), 4);
    list += name;
    bytes += "PK\x03\x04"s;
    put_entry(bytes, name, content);
    bytes += name + content;
  }
  const std::uint64_t start = bytes.size();
  bytes += list + "PK\x05\x06"s;
  put(bytes, 0, 4);
  put(bytes, contents.size(), 2);
  put(bytes, contents.size(), 2);
  put(bytes, list.size(), 4);
  put(bytes, start, 4);
  put(bytes, 0, 2);
  return bytes;
}

/// The records of an archive, without the folder that holds them all.
inline Contents contents_of(const std::filesystem::path& file) {
  const ZipArchive archive(file, "test");
  Contents contents;
  for (const auto& [name, record] : archive.records()) contents[name] = archive.text(record);
  return contents;
}

}  // namespace demi::imported
