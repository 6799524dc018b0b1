#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "demi/checkpoint/contents.h"
#include "demi/checkpoint/safetensors.h"
#include "demi/core/export.h"

// Models as Hugging Face's package transformers saves them: a folder with config.json and
// model.safetensors, or with shards that model.safetensors.index.json names.
namespace demi::huggingface {

/// The folder that `named` means: the folder itself; the folder of a file with one of these names;
/// for a folder "models--NAME" in the cache of Python's huggingface_hub, the snapshot of its main.
/// nullopt if it is no such folder: config.json must name a model_type or architectures, or there
/// must be an index or an adapter; a folder of model.safetensors alone is one that lacks
/// config.json. A folder of demi's has none of these, and a file of demi's is marked in its
/// metadata.
DEMI_API std::optional<std::filesystem::path> folder_of(const std::filesystem::path& named);

/// Throws DataError for a folder of an adapter (peft's), which is no model by itself.
void require_no_adapter(const std::filesystem::path& folder);

/// The files of tensors: one, or those of the index, each once. Throws DataError: none, an index
/// that is damaged, a shard that is missing, an adapter.
DEMI_API std::vector<std::filesystem::path> weight_files(const std::filesystem::path& folder);

/// All tensors, mapped. Throws DataError as weight_files, for damaged files, and if they do not
/// hold what the index says.
checkpoint::NamedTensors read_tensors(const std::filesystem::path& folder);

/// The contents of a folder, without values: the tensors of all files by name, and, as metadata,
/// the entries of config.json. Throws DataError as weight_files.
DEMI_API checkpoint::Contents contents(const std::filesystem::path& folder);

}  // namespace demi::huggingface
