#include "lab/huggingface/write.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "demi/core/atomic_file.h"
#include "demi/core/error.h"
#include "demi/tensor/dtype.h"
#include "demi/tensor/range.h"
#include "lab/huggingface/config.h"
#include "lab/huggingface/names.h"
#include "lab/huggingface/tokenizer_files.h"

namespace demi::huggingface {
namespace {

namespace fs = std::filesystem;
using checkpoint::NamedTensors;
using models::GPTForm;

constexpr auto kWriteModel = "huggingface.write_model";
const checkpoint::Metadata kMetadata{{"format", "pt"}};

bool is_without_biases(const models::GPTOptions& o) { return o.form == GPTForm::gpt2 && !o.bias; }

at::Tensor own_tensor(const TensorNames& names, const Model& model) {
  const auto found = model.weights.find(names.own);
  if (found != model.weights.end()) return found->second;
  if (is_without_biases(model.options) && names.own.ends_with(".bias"))
    return at::zeros(names.rows, model.weights.at("tokens.weight").options());
  refuse({.where = kWriteModel,
          .what = "a weight of the model is missing",
          .seen = names.own,
          .accepted = "all tensors of the GPT of these options"});
}

void require_shape(const TensorNames& names, const at::Tensor& tensor) {
  std::vector<int64_t> shape = names.more;
  int64_t rows = 0;
  for (const int64_t part : names.rows) rows += part;
  shape.insert(shape.begin(), rows);
  if (tensor.sizes() == shape) return;
  refuse({.where = kWriteModel,
          .what = "a weight has not the shape that the options give",
          .seen = fmt::format("{} of {} elements", names.own, tensor.numel()),
          .accepted = "the tensors of the GPT of these options"});
}

at::Tensor rounded(const std::string& name, const at::Tensor& tensor, c10::ScalarType dtype) {
  if (const auto value = tensor::beyond_range(tensor, dtype))
    refuse<DataError>({.where = kWriteModel,
                       .what = fmt::format("a value of {} is beyond the range of {}", name,
                                           tensor::name_of(dtype)),
                       .seen = fmt::format("{:g}", *value),
                       .accepted = fmt::format("numbers that {} holds", tensor::name_of(dtype)),
                       .advice = "export it in a wider dtype"});
  return tensor.to(dtype);
}

NamedTensors their_tensors(const Model& model, std::optional<c10::ScalarType> dtype) {
  NamedTensors all;
  const std::string prefix(prefix_of(model.options.form));
  for (const TensorNames& names : tensor_names(model.options)) {
    at::Tensor tensor = own_tensor(names, model).detach().cpu();
    require_shape(names, tensor);
    if (dtype) tensor = rounded(names.own, tensor, *dtype);
    int64_t row = 0;
    for (std::size_t i = 0; i < names.theirs.size(); ++i) {
      const at::Tensor part = tensor.narrow(0, row, names.rows[i]);
      row += names.rows[i];
      const std::string& name = names.theirs[i];
      all[name == kHead ? name : prefix + name] = names.is_transposed ? part.t() : part;
    }
  }
  return all;
}

/// Divides the tensors into files, in the order of their names, each as full as it may be.
std::vector<NamedTensors> shards_of(NamedTensors all, int64_t most) {
  std::vector<NamedTensors> shards(1);
  int64_t bytes = 0;
  for (auto& [name, tensor] : all) {
    const auto size = static_cast<int64_t>(tensor.nbytes());
    if (bytes + size > most && !shards.back().empty()) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += size;
    shards.back()[name] = std::move(tensor);
  }
  return shards;
}

void require_new(const fs::path& folder) {
  std::error_code code;
  const bool is_new = !fs::exists(folder, code) || fs::is_empty(folder, code);
  if (is_new && !code) return;
  refuse({.where = kWriteModel,
          .what = "the folder is not empty",
          .seen = folder.string(),
          .accepted = "a new folder, or an empty one"});
}

void make(const fs::path& folder) {
  std::error_code code;
  fs::create_directories(folder, code);
  if (code)
    refuse<TrainingError>({.where = kWriteModel,
                           .what = "the folder cannot be made: " + folder.string(),
                           .seen = code.message()});
}

std::vector<std::string> write_shards(const fs::path& folder, std::vector<NamedTensors> shards) {
  using Json = nlohmann::ordered_json;
  std::vector<std::string> files;
  std::map<std::string, std::string> file_of;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    files.push_back(fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size()));
    checkpoint::save_safetensors(folder / files.back(), shards[i], kMetadata);
    for (const auto& [name, tensor] : shards[i]) {
      file_of[name] = files.back();
      bytes += tensor.nbytes();
    }
  }
  const Json index{{"metadata", {{"total_size", bytes}}}, {"weight_map", file_of}};
  files.emplace_back("model.safetensors.index.json");
  write_atomically(folder / files.back(), index.dump(2) + "\n");
  return files;
}

std::vector<std::string> write_tensors(const fs::path& folder, std::vector<NamedTensors> shards) {
  if (shards.size() > 1) return write_shards(folder, std::move(shards));
  checkpoint::save_safetensors(folder / "model.safetensors", shards.front(), kMetadata);
  return {"model.safetensors"};
}

std::vector<std::string> copy_tokenizer(const fs::path& source, const fs::path& folder) {
  std::vector<std::string> files = tokenizer_files(source);
  for (const std::string& file : files) {
    std::error_code code;
    fs::copy(source / file, folder / file, fs::copy_options::recursive, code);
    if (code)
      refuse<TrainingError>({.where = kWriteModel,
                             .what = "the file cannot be copied: " + (source / file).string(),
                             .seen = code.message()});
  }
  return files;
}

void check_options(const WriteOptions& o) {
  if (o.dtype && *o.dtype != c10::kFloat && *o.dtype != c10::kHalf && *o.dtype != c10::kBFloat16)
    refuse({.where = kWriteModel,
            .what = "transformers has no models of that dtype",
            .seen = tensor::name_of(*o.dtype),
            .accepted = "fp32, fp16, bf16"});
  if (o.shard_bytes < 1)
    refuse({.where = kWriteModel,
            .what = "shard_bytes is out of range",
            .seen = fmt::to_string(o.shard_bytes),
            .accepted = "1 or more"});
}

}  // namespace

std::vector<std::string> tokenizer_files(const fs::path& folder) {
  std::vector<std::string> files{"tokenizer.json",
                                 "tokenizer_config.json",
                                 "tokenizer.model",
                                 "vocab.json",
                                 "merges.txt",
                                 "added_tokens.json",
                                 "special_tokens_map.json",
                                 "chat_template.jinja",
                                 "additional_chat_templates",
                                 "generation_config.json"};
  std::erase_if(files, [&](const std::string& file) {
    std::error_code code;
    return !fs::exists(folder / file, code);
  });
  return files;
}

std::vector<std::string> write_model(const fs::path& folder, const Model& model,
                                     const WriteOptions& options) {
  check_options(options);
  const auto embedding = model.weights.find("tokens.weight");
  const c10::ScalarType dtype = options.dtype ? *options.dtype
                                : embedding == model.weights.end()
                                    ? c10::kFloat
                                    : embedding->second.scalar_type();
  const bool copies = !options.source.empty() && options.tokenizer.name.empty();
  const std::string config =
      write_config(model.options, dtype, end_of_text(options.tokenizer), options.source);
  require_new(folder);
  auto shards = shards_of(their_tensors(model, options.dtype), options.shard_bytes);
  make(folder);
  std::vector<std::string> files = write_tensors(folder, std::move(shards));
  for (std::string& file : copies
                               ? copy_tokenizer(options.source, folder)
                               : write_tokenizer(folder, options.tokenizer, model.options.context))
    files.push_back(std::move(file));
  write_atomically(folder / "config.json", config);
  files.emplace_back("config.json");
  return files;
}

}  // namespace demi::huggingface
