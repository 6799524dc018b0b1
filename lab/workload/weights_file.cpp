#include "lab/workload/weights_file.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>
#include <system_error>
#include <utility>

#include "demi/autocast/to_precision.h"
#include "demi/checkpoint/checkpoint.h"
#include "demi/checkpoint/manifest.h"
#include "demi/core/error.h"
#include "demi/step/coded_weight.h"
#include "lab/models/imported.h"
#include "lab/settings/config_source.h"
#include "lab/shell_word.h"

namespace demi::workload {
namespace {

checkpoint::NamedTensors tensors_of(const torch::nn::Module& module) {
  checkpoint::NamedTensors tensors;
  for (const auto& item : module.named_parameters()) tensors[item.key()] = item.value().detach();
  for (const auto& item : module.named_buffers()) tensors[item.key()] = item.value().detach();
  return tensors;
}

// The config with base names of paths: elsewhere the data are in another place.
settings::Config with_base_names(settings::Config config) {
  if (models::is_network_file(config.model))
    config.model = std::filesystem::path(config.model).filename();
  for (std::string* path : {&config.data_dir, &config.train_file, &config.test_file}) {
    std::filesystem::path base = std::filesystem::path(*path).lexically_normal();
    if (!base.has_filename()) base = base.parent_path();  // "data/"
    *path = base.filename();
  }
  return config;
}

int64_t size_of(const std::filesystem::path& file) {
  return static_cast<int64_t>(std::filesystem::file_size(file));
}

}  // namespace

int64_t save_shipped_weights(const torch::nn::Module& trained, torch::nn::Module& spare,
                             const Precision& precision, const std::filesystem::path& file,
                             const settings::Config& config, checkpoint::Metadata model_texts) {
  const torch::NoGradGuard no_grad;
  checkpoint::NamedTensors weights = tensors_of(spare);
  for (const auto& [name, tensor] : tensors_of(trained)) weights.at(name).copy_(tensor);
  to_precision(spare, precision.shipped());
  model_texts["format"] = "pt";
  model_texts["demi.precision"] = precision.name;
  model_texts["demi.config"] = settings::to_json(with_base_names(config));
  model_texts["demi.crc32c"];  // which saving computes
  checkpoint::save_safetensors(file, tensors_of(spare), model_texts);
  return size_of(file);
}

namespace {

[[noreturn]] void misfit(const std::string& seen) {
  throw DataError({.where = "workload.load_weights",
                   .what = "the weights do not fit the model",
                   .seen = seen,
                   .advice = "name the model that they were saved from"});
}

}  // namespace

void load_weights(torch::nn::Module& module, checkpoint::NamedTensors weights) {
  try {
    checkpoint::restore({.model = std::move(weights)}, {.models = {&module}, .random = false});
  } catch (const UsageError& error) {
    misfit(error.what());
  }
}

void load_shipped_weights(torch::nn::Module& spare, const Precision& precision,
                          const std::filesystem::path& file) {
  to_precision(spare, precision.shipped());
  checkpoint::NamedTensors weights = checkpoint::load(file).model;
  for (const auto& [name, tensor] : tensors_of(spare)) {
    const auto found = weights.find(name);
    if (found != weights.end() && found->second.scalar_type() != tensor.scalar_type())
      misfit("another dtype of " + name + " in " + file.string());
  }
  load_weights(spare, std::move(weights));
}

namespace {

// A checkpoint, or what names one: a folder, or one of the files with a checkpoint's name.
bool is_checkpoint(const std::filesystem::path& path) {
  std::error_code unreadable;  // which reading it says
  return std::filesystem::is_directory(path, unreadable) || path.filename() == "last" ||
         path.filename() == "best";
}

}  // namespace

std::vector<std::string> parameter_names(const checkpoint::Checkpoint& saved) {
  std::vector<std::string> all;
  if (const auto found = saved.parameters.find("optimizer"); found != saved.parameters.end())
    for (const auto& group : found->second) all.insert(all.end(), group.begin(), group.end());
  return all;
}

bool take_masters(checkpoint::Checkpoint& saved) {
  const std::vector<std::string> names = parameter_names(saved);
  bool any = false;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto weight = saved.model.find(names[i]);
    auto master = saved.state.extract(fmt::format("optimizer/{}.master", i));
    const auto rest = saved.state.extract(fmt::format("optimizer/{}.remainder", i));
    if (weight == saved.model.end() || (!master && !rest)) continue;
    weight->second = master ? std::move(master.mapped())
                            : optim::converted_weight(weight->second, rest.mapped());
    any = true;
  }
  return any;
}

checkpoint::NamedTensors read_weights(const std::filesystem::path& path) {
  constexpr std::string_view kAverage = "average/";
  checkpoint::Checkpoint saved = checkpoint::load(path);
  take_masters(saved);
  for (const auto& [name, tensor] : saved.state) {
    if (!name.starts_with(kAverage)) continue;
    const auto found = saved.model.find(name.substr(kAverage.size()));
    if (found != saved.model.end()) found->second = tensor;
  }
  return std::move(saved.model);
}

namespace {

/// Nothing where it is no number.
std::optional<std::int64_t> number_of(const std::string& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

WeightsInfo weights_info(const std::filesystem::path& path) {
  const bool is_folder = is_checkpoint(path);
  checkpoint::Metadata text;
  checkpoint::read_current(path, [&](const std::filesystem::path& one) {
    text = is_folder ? checkpoint::read_manifest(one).text
                     : checkpoint::read_safetensors_header(one).metadata;
  });
  return weights_info(text, path, is_folder);
}

WeightsInfo weights_info(const checkpoint::Metadata& text, const std::filesystem::path& path,
                         bool is_folder) {
  const auto config = text.find("demi.config"), precision = text.find("demi.precision");
  if (config == text.end() || precision == text.end()) {
    throw DataError({.where = "workload.weights_info",
                     .what = is_folder ? "the checkpoint does not say which run it is from"
                                       : "the file does not say which run it is from",
                     .seen = path.string(),
                     .accepted = "a run folder, one of its checkpoints, or its model.safetensors",
                     .advice = "weights from elsewhere can start a run: demi train RECIPE --from " +
                               lab::shell_word(path.string())});
  }
  WeightsInfo result{.precision = parse_precision(precision->second)};
  if (const auto step = text.find("demi.step"); step != text.end())
    result.steps = number_of(step->second);
  for (const settings::Assignment& a : settings::read_config_text(config->second, path.string()))
    settings::set(result.config, a.name, a.text, a.source);
  return result;
}

}  // namespace demi::workload
