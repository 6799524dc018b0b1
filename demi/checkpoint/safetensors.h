#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "demi/core/export.h"

namespace demi::checkpoint {

/// Names are unique and free (UTF-8), only "__metadata__" is taken by the format.
using NamedTensors = std::map<std::string, at::Tensor>;
using Metadata = std::map<std::string, std::string>;

/// What a safetensors file holds: 8 bytes little-endian header length, a JSON header with dtype,
/// shape and place of each tensor, then the raw values (https://github.com/huggingface/safetensors,
/// "Format").
struct Safetensors {
  NamedTensors tensors;  // on the CPU, contiguous
  Metadata metadata;
};

/// Writes dense tensors of any device and layout: fp64 fp32 fp16 bf16 fp8_e4m3 fp8_e5m2, complex64,
/// signed and unsigned integers of 8 to 64 bits, bool.
/// The values start at a multiple of 8, and each tensor at a multiple of its element size; the file
/// is Python's safetensors byte for byte (with at most one metadata entry: Python leaves their
/// order open). Atomic: see AtomicFile. Synchronises with the device. Throws UsageError,
/// TrainingError (disk).
DEMI_API void save_safetensors(const std::filesystem::path& file, const NamedTensors& tensors,
                               const Metadata& metadata = {});

/// Where one tensor lies in a file.
struct TensorPlace {
  std::string name;
  std::string dtype;  // as the format spells it: F32, BF16, ...
  std::vector<int64_t> shape;
  uint64_t begin, end;  // bytes after the header
};

struct SafetensorsHeader {
  std::vector<TensorPlace> tensors;  // in the order of their values
  Metadata metadata;
  uint64_t data_start;  // offset of the values in the file
};

/// The header alone, checked against the file's size. Throws DataError: file, offset, found,
/// expected.
DEMI_API SafetensorsHeader read_safetensors_header(const std::filesystem::path& file);

/// Everything. Throws DataError also for a dtype that LibTorch has no name for.
DEMI_API Safetensors load_safetensors(const std::filesystem::path& file);

}  // namespace demi::checkpoint
