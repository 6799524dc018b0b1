#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "demi/checkpoint/input_file.h"
#include "demi/core/export.h"

namespace demi::imported {

/// A file in a zip archive, stored as it is.
struct Record {
  std::string name;
  std::uint64_t offset = 0;  // of its local header
  std::uint64_t bytes = 0;
  std::uint32_t crc32 = 0;
  std::uint16_t method = 0;  // 0: stored
};

/// A zip archive (APPNOTE 6.3), with or without zip64, whose records are not compressed, as PyTorch
/// writes them. Everything throws DataError, which names file, record and offset.
class DEMI_API ZipArchive {
 public:
  /// Reads the list of records and checks it against the file's size.
  ZipArchive(const std::filesystem::path& path, std::string_view where);
  ~ZipArchive();

  const std::filesystem::path& path() const { return file_.fault().path; }

  /// Records by name, without the folder that holds them all, if there is one: PyTorch writes
  /// NAME/data/weights/weight_0.
  const std::map<std::string, Record>& records() const { return records_; }
  const Record* find(std::string_view name) const;

  /// Compares the name in front of each record with the list's: a damaged list could leave one out.
  void check_names() const;

  /// Copies the record to memory of record.bytes, and compares its checksum.
  void read(const Record& record, void* to) const;
  std::string text(const Record& record) const;

 private:
  struct Directory {
    std::uint64_t offset, bytes, records;
  };

  Directory find_directory() const;
  void find_directory64(std::uint64_t end, Directory& directory) const;
  void read_records(const Directory& directory);
  void check_overlaps() const;
  void leave_out_root();
  std::uint64_t data_offset(const Record& record) const;
  [[noreturn]] void refuse(std::string_view what, std::uint64_t offset, std::string_view seen,
                           std::string_view accepted) const;

  checkpoint::InputFile file_;
  std::map<std::string, Record> records_;
};

}  // namespace demi::imported
