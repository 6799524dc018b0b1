#pragma once

#include <c10/core/ScalarType.h>

#include <filesystem>
#include <string>

#include "demi/checkpoint/safetensors.h"
#include "demi/core/export.h"
#include "lab/models/gpt.h"
#include "lab/tokens/tokenizer.h"

namespace demi::huggingface {

/// A GPT-2 or a Llama that was read from a folder.
struct Model {
  models::GPTOptions options;        // form and sizes
  checkpoint::NamedTensors weights;  // under the names of models::GPT
};

/// The contents of config.json and of the tokenizer's files, without tensors.
struct Description {
  models::GPTOptions options;             // form and sizes
  tokens::TokenizerTexts tokenizer = {};  // without a name: no tokenizer that demi has
  std::string no_tokenizer = {};          // why
};

/// Reads config.json, and tokenizer.json or vocab.json with merges.txt beside it. Throws DataError
/// for a config.json that demi::models::GPT cannot follow, by the name of the entry.
DEMI_API Description read_description(const std::filesystem::path& folder);

/// Reads the tensors of a folder (folder_of), in their dtypes: linear layers of GPT-2 are turned,
/// q, k and v of Llama become one tensor, buffers are left out. Throws DataError, which names file,
/// entry or tensor: a folder that read_description or folder.h refuses, tensors that are not those
/// of config.json (missing, of other sizes, too many), another dtype than fp64, fp32, fp16 and
/// bf16, a head that config.json calls tied and that is not the embedding.
DEMI_API Model read_model(const std::filesystem::path& folder);

}  // namespace demi::huggingface
