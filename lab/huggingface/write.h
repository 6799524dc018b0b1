#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/huggingface/model.h"

namespace demi::huggingface {

/// Options of writing a model.
struct WriteOptions {
  std::optional<c10::ScalarType> dtype = {};  // fp32, fp16 or bf16; empty: unchanged
  int64_t shard_bytes = 5'000'000'000;        // of a file at most, but for one larger tensor
  tokens::TokenizerTexts tokenizer = {};      // of byte pairs; others have no file there
  /// The folder of Hugging Face's from which the model is: the tokens that begin, end and pad a
  /// text stay those of its config.json, and without a `tokenizer` its tokenizer_files are copied.
  std::filesystem::path source = {};
};

/// The names of those files of the folder that belong to any tokenizer, to chats and to generation.
DEMI_API std::vector<std::string> tokenizer_files(const std::filesystem::path& folder);

/// Writes config.json, model.safetensors (or shards with their index) and, of byte pairs,
/// tokenizer.json, tokenizer_config.json, vocab.json and merges.txt: what transformers'
/// from_pretrained reads. A GPT-2 without biases gets biases of 0, which is the same function.
/// Returns the names of the files. Throws UsageError: a folder that is there and not empty, a form
/// that transformers has not (nanochat), weights that are not those of the options; DataError: a
/// finite weight that `dtype` does not hold; TrainingError: the disk fails, and then config.json is
/// missing.
DEMI_API std::vector<std::string> write_model(const std::filesystem::path& folder,
                                              const Model& model, const WriteOptions& options = {});

}  // namespace demi::huggingface
