#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "demi/checkpoint/checkpoint.h"
#include "demi/checkpoint/safetensors.h"
#include "demi/core/export.h"
#include "demi/core/state_dict.h"

namespace demi::checkpoint {

/// The version of manifest.json's format that is written here, and the newest that can be read.
inline constexpr int64_t kFormatVersion = 1;

/// Checksums of one safetensors file: CRC-32C (demi/core/crc32c.h).
struct FileRecord {
  uint64_t bytes = 0;                       // of the whole file
  uint32_t checksum = 0;                    // of the whole file
  std::map<std::string, uint32_t> tensors;  // of each tensor's values as they are in the file
  std::map<std::string, uint32_t> texts;    // of each entry of Checkpoint::model_text
};

/// The content of manifest.json. As text it is a JSON object with the members format ("demi
/// checkpoint"), format_version, demi, libtorch, step, run, keep, scores, text, numbers,
/// parameters, files and, last, crc32c: the checksum of the file's bytes before the comma that
/// precedes it. Without marks there is neither keep nor scores. Checksums are 8 lower-case
/// hexadecimal digits. Numbers are JSON numbers in the fewest digits that give the same bits, and
/// the strings "inf", "-inf" and "nan"; a NaN of other bits is "nan:" and 16 hexadecimal digits.
struct Manifest {
  int64_t step = 0;                          // optimizer steps that were taken
  std::string demi, libtorch;                // versions of those that wrote it
  std::map<std::string, StateDict> numbers;  // as Checkpoint::numbers
  Metadata text;                             // as Checkpoint::text
  std::map<std::string, FileRecord> files;   // by file name
  std::string run;                           // as Checkpoint::run; "none" in a text without it
  std::map<std::string, ParameterGroups> parameters = {};  // as Checkpoint::parameters
  bool keep = false;                                       // as SaveOptions::keep
  std::map<std::string, double> scores = {};               // as SaveOptions::scores
};

/// The text of manifest.json. Throws UsageError for names and texts that are not UTF-8.
DEMI_API std::string to_text(const Manifest& manifest);

/// The end of a manifest with this body: its checksum.
DEMI_API std::string closing_of_manifest(std::string_view body);

/// Reads such a text; `file` is named in messages. Throws DataError for a damaged text, one of
/// another kind, and one of a newer format version.
DEMI_API Manifest parse_manifest(const std::filesystem::path& file, std::string_view text);

/// The manifest of a checkpoint's folder. Throws DataError as parse_manifest, and if there is no
/// such file or it cannot be read.
DEMI_API Manifest read_manifest(const std::filesystem::path& checkpoint);

/// Whether the folder has a manifest.json of demi's. Another program's counts as none, unless both
/// files of a checkpoint are beside it: then it may be a damaged one of demi's. One that cannot be
/// read counts: read_manifest says why. Throws nothing.
DEMI_API bool has_manifest(const std::filesystem::path& folder);

}  // namespace demi::checkpoint
