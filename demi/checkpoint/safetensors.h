#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "demi/core/export.h"

namespace demi::checkpoint {

/// Tensors by name: any UTF-8 text but "__metadata__", which the format uses itself.
using NamedTensors = std::map<std::string, at::Tensor>;
/// Texts by name, which a file holds, too.
using Metadata = std::map<std::string, std::string>;

/// The content of a safetensors file. The file holds 8 bytes little-endian header length, a JSON
/// header with dtype, shape and place of each tensor, then the raw values
/// (https://github.com/huggingface/safetensors, "Format").
struct Safetensors {
  NamedTensors tensors;  // on the CPU, contiguous
  Metadata metadata;     // texts by name, which the header holds
};

/// Writes dense tensors of any device and strides: fp64 fp32 fp16 bf16 fp8_e4m3 fp8_e5m2,
/// complex64, signed and unsigned integers of 8 to 64 bits, bool. The values start at a multiple of
/// 8 bytes, and each tensor at a multiple of its element size. The file is that of Python's
/// safetensors byte for byte, if there is at most one metadata entry (Python leaves their order
/// open). A metadata entry demi.crc32c gets another value: the checksum of the values and of the
/// entries whose names begin with "demi.", which loading compares. The file is written whole or not
/// at all (AtomicFile). Synchronises with the tensors'
/// devices. Throws UsageError for a name or text that the format cannot hold and for other tensors,
/// TrainingError if the disk fails.
DEMI_API void save_safetensors(const std::filesystem::path& file, const NamedTensors& tensors,
                               const Metadata& metadata = {});

/// The place of one tensor in a file.
struct TensorPlace {
  std::string name;            // as the header has it
  std::string dtype;           // as the format spells it: F32, BF16, ...
  std::vector<int64_t> shape;  // sizes, outermost first
  uint64_t begin, end;         // in bytes, counted from the end of the header
};

/// The header of a file, which comes before the values.
struct SafetensorsHeader {
  std::vector<TensorPlace> tensors;  // in the order of their values
  Metadata metadata;                 // texts by name
  uint64_t data_start;               // offset of the first value in the file, in bytes
};

/// Reads the header alone and checks it against the file's size. Throws DataError, which names
/// file, offset, what was found and what was expected.
DEMI_API SafetensorsHeader read_safetensors_header(const std::filesystem::path& file);

/// Reads the whole file. Tensors are contiguous, on the CPU, and own their memory. Throws DataError
/// as read_safetensors_header, for a dtype that LibTorch does not have, and for values or texts
/// that are not those of the entry demi.crc32c.
DEMI_API Safetensors load_safetensors(const std::filesystem::path& file);

}  // namespace demi::checkpoint
