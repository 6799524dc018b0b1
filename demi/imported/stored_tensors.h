#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/imported/graph.h"
#include "demi/imported/zip_archive.h"

namespace demi::imported {

/// A tensor of an archive: the bytes of its storage, and its place in them.
struct StoredTensor {
  std::string record;  // "data/weights/weight_0"
  TensorMeta meta;
  bool is_parameter = false;
};

/// Whether two names stand for one tensor: one place in one storage.
bool same_tensor(const StoredTensor& a, const StoredTensor& b);

/// The bytes of its record that a tensor reaches over: [first, end).
std::uint64_t first_byte(const StoredTensor& stored);
std::uint64_t end_byte(const StoredTensor& stored);

using StoredTensors = std::map<std::string, StoredTensor>;

/// The tensors that a configuration file of the archive lists, by Python's name. `folder`: the
/// folder of their bytes. Objects that are no tensors are left out. Throws DataError, also for
/// tensors of a subclass, which only a pickle holds, for tensors without bytes, and for places
/// outside of them.
StoredTensors read_stored_tensors(const ZipArchive& archive, const std::string& config,
                                  const std::string& folder);

/// Tensors of an archive on the CPU, in memory of their own. Those that share a record share their
/// storage, and those that are also at one place of it are one tensor.
class DEMI_API TensorReader {
 public:
  explicit TensorReader(const ZipArchive& archive) : archive_(archive) {}

  at::Tensor read(const StoredTensor& stored);

 private:
  struct Made {
    TensorMeta meta;
    at::Tensor tensor;
  };

  const ZipArchive& archive_;
  std::map<std::string, at::Tensor> bytes_;
  std::map<std::string, std::vector<Made>> made_;
};

}  // namespace demi::imported
