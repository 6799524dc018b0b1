#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/workload/model_file.h"

namespace demi::workload {

/// A folder of Hugging Face's (huggingface::folder_of) as a model file: config.json as settings of
/// the model gpt, and the tokenizer beside it. Throws DataError as huggingface::read_description.
ModelTexts texts_of_huggingface(const std::filesystem::path& folder);

/// Reads the model with its weights, under the names of models::GPT. Throws DataError as
/// huggingface::read_model.
ModelFile read_huggingface(const std::filesystem::path& folder);

/// Options of `demi export`.
struct ExportOptions {
  std::optional<c10::ScalarType> dtype = {};  // fp32, fp16 or bf16; empty: as in the file
  int64_t shard_bytes = 5'000'000'000;        // of a file at most, but for one larger tensor
};

/// The result of an export.
struct Exported {
  std::string kind;                // GPT-2, Llama
  int64_t parameters = 0;          // of the network
  std::vector<std::string> files;  // names in the folder
  std::vector<std::string> notes;  // for people: what has no place there
};

/// Writes the language model of a model file, a checkpoint, what names one, or of such a folder, as
/// a folder that transformers' from_pretrained reads. Throws DataError as read_model_file,
/// UsageError for another model and as huggingface::write_model, TrainingError if the disk fails.
DEMI_API Exported export_huggingface(const std::filesystem::path& file,
                                     const std::filesystem::path& folder,
                                     const ExportOptions& options = {});

}  // namespace demi::workload
