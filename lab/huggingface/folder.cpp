#include "lab/huggingface/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <system_error>
#include <utility>

#include "demi/checkpoint/checkpoint.h"
#include "demi/checkpoint/manifest.h"
#include "demi/core/json_value.h"
#include "lab/huggingface/json_file.h"

namespace demi::huggingface {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr auto kConfig = "config.json", kWeights = "model.safetensors",
               kIndex = "model.safetensors.index.json", kAdapter = "adapter_config.json",
               kAdapterWeights = "adapter_model.safetensors";

bool is_there(const fs::path& path) {
  std::error_code unreadable;
  return fs::exists(path, unreadable);
}

// A run's folder of demi has a config.json, too.
bool has_config(const fs::path& folder) {
  const json config = json_or_null(json_text(folder / kConfig).value_or(""));
  return config.is_object() && (config.contains("model_type") || config.contains("architectures"));
}

bool is_model(const fs::path& folder) {
  return !checkpoint::has_manifest(folder) &&
         (has_config(folder) || is_there(folder / kIndex) || is_there(folder / kAdapter));
}

bool is_of_demi(const fs::path& file) {
  if (file.extension() != ".safetensors") return false;
  try {
    return checkpoint::read_safetensors_header(file).metadata.contains("demi.config");
  } catch (const DataError&) {
    return false;  // which reading it says
  }
}

// Somebody fetched the tensors alone. A checkpoint has a state beside them.
bool lacks_config(const fs::path& folder) {
  return is_there(folder / kWeights) && !is_there(folder / kConfig) &&
         !checkpoint::has_manifest(folder) && !is_there(folder / "state.safetensors") &&
         !is_there(folder / "checkpoints") && !is_of_demi(folder / kWeights);
}

// model.safetensors, its index, model-00001-of-00002.safetensors, or an adapter's.
bool is_name_of_weights(const std::string& name) {
  return name == kWeights || name == kIndex || name == kAdapterWeights ||
         (name.starts_with("model-") && name.ends_with(".safetensors"));
}

[[noreturn]] void refuse_without_weights(const fs::path& folder) {
  const bool has_pickle =
      is_there(folder / "pytorch_model.bin") || is_there(folder / "pytorch_model.bin.index.json");
  Wrong{folder}("the folder has no tensors",
                has_pickle ? "pytorch_model.bin, which may hold any program" : "no such file",
                fmt::format("{} or {}", kWeights, kIndex),
                has_pickle ? "Python makes one: transformers.AutoModelForCausalLM.from_pretrained("
                             "FOLDER).save_pretrained(OTHER)"
                           : "");
}

/// The file of each tensor.
std::map<std::string, std::string> read_index(const fs::path& file) {
  const json index = read_object(file);
  try {
    return JsonValue(index).at("weight_map").get<std::map<std::string, std::string>>();
  } catch (const JsonError& error) {
    Wrong{file}("the index is damaged", error.what(), "weight_map: names of tensors and files");
  }
}

// An index may come from anywhere, and names what is beside it.
fs::path beside(const fs::path& index, const std::string& name) {
  const fs::path file = index.parent_path() / name;
  if (name.empty() || fs::path(name).filename() != name)
    Wrong{index}("a shard is not in the folder", name, "the name of a file beside the index");
  if (!is_there(file))
    Wrong{index}("a shard is missing", name, "all files that the index names",
                 "get that file, too");
  return file;
}

// The snapshot in "models--gpt2", a folder in which Python's huggingface_hub keeps the files that
// it fetched, as main named them then. Any other folder is returned itself.
fs::path snapshot_of(const fs::path& folder) {
  std::string revision;
  std::ifstream(folder / "refs" / "main") >> revision;
  const fs::path snapshot = folder / "snapshots" / revision;
  const bool is_name = !revision.empty() && fs::path(revision).filename() == revision;
  return is_name && is_there(snapshot) ? snapshot : folder;
}

}  // namespace

std::optional<fs::path> folder_of(const fs::path& named) {
  const fs::path path = snapshot_of(named);
  std::error_code unreadable;
  if (fs::is_directory(path, unreadable))
    return is_model(path) || lacks_config(path) ? std::optional(path) : std::nullopt;
  if (!is_name_of_weights(path.filename().string())) return std::nullopt;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (!is_model(folder) || is_of_demi(path)) return std::nullopt;
  return folder;
}

void require_no_adapter(const fs::path& folder) {
  if (is_there(folder / kAdapter))
    Wrong{folder}("the folder has an adapter, whose weights belong to another model's", kAdapter,
                  "a whole model",
                  "Python makes one: peft.AutoPeftModelForCausalLM.from_pretrained(FOLDER)"
                  ".merge_and_unload().save_pretrained(OTHER)");
}

std::vector<fs::path> weight_files(const fs::path& folder) {
  require_no_adapter(folder);
  const fs::path index = folder / kIndex;
  if (is_there(folder / kWeights)) return {folder / kWeights};
  if (!is_there(index)) refuse_without_weights(folder);
  std::set<fs::path> files;
  for (const auto& [tensor, file] : read_index(index)) files.insert(beside(index, file));
  if (files.empty()) Wrong{index}("the index names no tensors", "none", "one or more");
  return {files.begin(), files.end()};
}

checkpoint::NamedTensors read_tensors(const fs::path& folder) {
  checkpoint::NamedTensors all;
  std::map<std::string, std::string> held;
  for (const fs::path& file : weight_files(folder))
    for (auto& [name, tensor] : checkpoint::map(file).model) {
      if (!all.emplace(name, tensor).second)
        Wrong{file}("a tensor is in two files", name, "each once");
      held[name] = file.filename().string();
    }
  if (is_there(folder / kWeights)) return all;
  for (const auto& [name, file] : read_index(folder / kIndex))
    if (held[name] != file)
      Wrong{folder / kIndex}("a shard does not hold what the index says",
                             name + " is not in " + file, "the shards that belong to the index");
  return all;
}

checkpoint::Contents contents(const fs::path& folder) {
  checkpoint::Contents all{.path = folder};
  for (const fs::path& file : weight_files(folder))
    for (checkpoint::StoredTensor& one : checkpoint::contents(file).tensors)
      all.tensors.push_back(std::move(one));
  std::ranges::sort(all.tensors, checkpoint::natural_less, &checkpoint::StoredTensor::name);
  const json config = read_object(folder / kConfig);
  for (const auto& [name, value] : config.items())
    all.metadata[name] = value.is_string() ? value.get<std::string>() : value.dump();
  return all;
}

}  // namespace demi::huggingface
