#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
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

  /// Throws unless the file has the size and the tensors' names that the record says.
  void expect(const FileRecord& record) const;

  /// All tensors, in memory of their own. Verifies the checksums if there is a record.
  NamedTensors load(const FileRecord* record) const;

  /// Reads the whole file, and verifies the checksums if there is a record; keeps nothing.
  void verify(const FileRecord* record) const;

  /// All tensors, in the mapped file; those that are not aligned there in memory of their own.
  NamedTensors map() const;

 private:
  struct Sums;

  SafetensorsHeader read_header();
  void read_values(const TensorPlace& place, char* to, Sums* sums) const;
  at::Tensor read_tensor(const TensorPlace& place, Sums* sums) const;
  void expect_tensor(const FileRecord& record, const TensorPlace& place, Sums& sums) const;
  void expect_file(const FileRecord& record, const Sums& sums) const;

  InputFile file_;
  uint32_t header_sum_ = 0;
  SafetensorsHeader header_;
};

}  // namespace demi::checkpoint
