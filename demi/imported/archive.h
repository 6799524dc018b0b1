#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/imported/graph.h"
#include "demi/imported/stored_tensors.h"
#include "demi/imported/zip_archive.h"

namespace demi::imported {

/// A file of torch.export.save (an archive in the form of PyTorch 2.9 and later) whose names and
/// graphs were read and checked; the weights' bytes were not. Nothing is unpickled, and neither
/// Python nor LibTorch's readers take part.
class DEMI_API Archive {
 public:
  /// Throws DataError: for a file that cannot be read, is damaged, or is of another kind, which it
  /// names, with the way to export it.
  explicit Archive(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return zip_.path(); }
  /// The file's graphs, by name; the first is "model", if the file has one.
  const std::vector<Program>& programs() const { return programs_; }
  /// Parameters and persistent buffers of a graph, then its constants and other buffers.
  const StoredTensors& weights(const std::string& program) const { return weights_.at(program); }
  const StoredTensors& constants(const std::string& program) const {
    return constants_.at(program);
  }
  /// CRC-32 of the record that holds a tensor, as the file's list has it.
  std::uint32_t checksum(const StoredTensor& stored) const {
    return zip_.find(stored.record)->crc32;
  }
  TensorReader tensors() const { return TensorReader(zip_); }

 private:
  void read_program(const std::string& name, const Record& record);

  ZipArchive zip_;
  std::vector<Program> programs_;
  std::map<std::string, StoredTensors> weights_, constants_;
};

}  // namespace demi::imported
