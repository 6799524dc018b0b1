#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>

#include "demi/checkpoint/input_file.h"
#include "demi/checkpoint/manifest.h"
#include "demi/checkpoint/safetensors.h"

namespace demi::checkpoint {

/// A safetensors file that is being read. Everything throws DataError if the file is not what it
/// should be or the disk fails.
class SafetensorsInput {
 public:
  /// Reads the header and checks it against the file's size.
  SafetensorsInput(const std::filesystem::path& path, std::string_view where);

  const SafetensorsHeader& header() const& { return header_; }
  SafetensorsHeader header() && { return std::move(header_); }

  /// Throws unless the file has the size, the tensors' names and the texts that the record says.
  void expect(const FileRecord& record) const;

  /// All tensors, in memory of their own. Verifies the checksums if there is a record, and the
  /// content's checksum if the file has one.
  NamedTensors load(const FileRecord* record) const;

  /// Reads the whole file, and verifies the checksums as load(); keeps nothing.
  void verify(const FileRecord* record) const;

  /// verify() of a file that has a checksum of its content; else nothing is read.
  void verify_content() const;

  /// All tensors, in the mapped file; those that are not aligned there in memory of their own.
  NamedTensors map() const;

 private:
  struct Sums;

  SafetensorsHeader read_header();
  void read_values(const TensorPlace& place, char* to, Sums* sums) const;
  at::Tensor read_tensor(const TensorPlace& place, Sums* sums) const;
  void expect_tensor(const FileRecord* record, const TensorPlace& place, Sums& sums) const;
  bool has_content_checksum() const;
  void expect_content(const Sums& sums) const;
  void expect_file(const FileRecord& record, const Sums& sums) const;

  InputFile file_;
  uint32_t header_sum_ = 0;
  SafetensorsHeader header_;
};

/// The entries of the file's metadata that the record has checksums of.
Metadata texts_of(const SafetensorsHeader& header, const FileRecord& record);

}  // namespace demi::checkpoint
