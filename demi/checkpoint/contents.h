#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "demi/checkpoint/safetensors.h"
#include "demi/core/export.h"
#include "demi/core/state_dict.h"

namespace demi::checkpoint {

class InputFile;

/// A tensor as it is in a file.
struct StoredTensor {
  std::string name;                                // as the module names it
  c10::ScalarType dtype = c10::ScalarType::Float;  // of the stored values
  std::vector<int64_t> shape;                      // sizes, outermost first; empty: one number
  uint64_t bytes = 0;                              // of its values in the file
  std::filesystem::path file;                      // the file that holds it
  uint64_t offset = 0;                             // of the first value in the file, in bytes
  bool of_model = true;                            // false: of a checkpoint's other files
  std::string checksum;  // from the checkpoint's manifest; "" of a file without one

  /// Numbers that it holds: the product of its shape.
  DEMI_API int64_t elements() const;
};

/// The contents of a safetensors file or a checkpoint, without the values of its tensors.
struct Contents {
  std::filesystem::path path;  // of the file, or of the checkpoint's folder
  bool is_file = true;         // a single safetensors file
  /// Sorted by name within each file, the model's file first. Digits in names count as numbers:
  /// layer.2 before layer.10.
  std::vector<StoredTensor> tensors;
  Metadata metadata;  // of a checkpoint its `text` and `model_text`
  /// Scaler, schedule and options of groups, by section and name. This and the members below are
  /// empty for a single file.
  std::map<std::string, StateDict> numbers;
  std::optional<int64_t> step;  // optimizer steps that were taken
  std::string demi, libtorch;   // versions of those that wrote it
};

/// Reads headers and the manifest alone, however large the files are. The path is that of a
/// safetensors file from anywhere, or one that means a checkpoint (checkpoint::find). Throws
/// DataError, as find() and read_safetensors_header(), and for files that are not those of the
/// manifest.
DEMI_API Contents contents(const std::filesystem::path& path);

/// Reads every byte and compares it with the checksums; keeps nothing. Throws DataError, which
/// names file, tensor and place. A single file has checksums if the manifest that names it is in
/// the same folder; of any other one the header, the size and the truth values are checked.
DEMI_API void verify(const Contents& contents);

/// Reads a stored tensor in parts, so that a file of any size takes little memory.
class DEMI_API StoredValues {
 public:
  /// Elements of a part: 1,048,576. All parts but the last one have that many.
  static constexpr int64_t kPart = int64_t{1} << 20;

  /// Throws DataError if the file cannot be opened.
  explicit StoredValues(const StoredTensor& tensor);

  /// The next elements in the order of memory: (n), in the tensor's dtype, on the CPU. Undefined at
  /// the end. Throws DataError if the file is shorter than it was, or cannot be read.
  at::Tensor next();

 private:
  std::shared_ptr<const InputFile> file_;
  c10::ScalarType dtype_;
  uint64_t offset_;
  int64_t left_;
};

/// Whether `a` comes before `b` if runs of digits count as numbers.
DEMI_API bool natural_less(std::string_view a, std::string_view b);

}  // namespace demi::checkpoint
