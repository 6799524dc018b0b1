#include "lab/recipes/weights_file.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <torch/serialize/output-archive.h>

#include <sstream>

#include "demi/autocast/to_precision.h"
#include "demi/checkpoint/safetensors.h"
#include "demi/core/error.h"
#include "demi/optim/optimizer.h"
#include "lab/recipes/config_source.h"

namespace demi::train {
namespace {

checkpoint::NamedTensors tensors_of(const torch::nn::Module& module) {
  checkpoint::NamedTensors tensors;
  for (const auto& item : module.named_parameters()) tensors[item.key()] = item.value().detach();
  for (const auto& item : module.named_buffers()) tensors[item.key()] = item.value().detach();
  return tensors;
}

int64_t size_of(const std::filesystem::path& file) {
  return static_cast<int64_t>(std::filesystem::file_size(file));
}

}  // namespace

int64_t save_shipped_weights(const torch::nn::Module& trained, torch::nn::Module& spare,
                             const Precision& precision, const std::filesystem::path& file,
                             const Config& config) {
  const torch::NoGradGuard no_grad;
  checkpoint::NamedTensors weights = tensors_of(spare);
  for (const auto& [name, tensor] : tensors_of(trained)) weights.at(name).copy_(tensor);
  to_precision(spare, precision.shipped());
  checkpoint::save_safetensors(file, tensors_of(spare),
                               {{"format", "pt"},
                                {"demi.precision", std::string(precision.name)},
                                {"demi.config", to_json(config)}});
  return size_of(file);
}

namespace {

[[noreturn]] void misfit(const std::filesystem::path& file, const std::string& seen) {
  throw DataError({.where = "train.load_weights",
                   .what = "the file " + file.string() + " does not fit the model",
                   .seen = seen,
                   .advice = "name the model that it was saved from"});
}

// `same_dtype`: what stands in the file is what the module holds, bit for bit.
void copy_from(torch::nn::Module& module, const std::filesystem::path& file, bool same_dtype) {
  const torch::NoGradGuard no_grad;
  const checkpoint::Safetensors saved = checkpoint::load_safetensors(file);
  checkpoint::NamedTensors weights = tensors_of(module);
  for (auto& [name, tensor] : weights) {
    const auto found = saved.tensors.find(name);
    if (found == saved.tensors.end()) misfit(file, "no tensor " + name);
    if (found->second.sizes() != tensor.sizes()) misfit(file, "another shape of " + name);
    if (same_dtype && found->second.scalar_type() != tensor.scalar_type())
      misfit(file, "another dtype of " + name);
    tensor.copy_(found->second);
  }
}

}  // namespace

void load_shipped_weights(torch::nn::Module& spare, const Precision& precision,
                          const std::filesystem::path& file) {
  to_precision(spare, precision.shipped());
  copy_from(spare, file, /*same_dtype=*/true);
}

void load_weights(torch::nn::Module& module, const std::filesystem::path& file) {
  copy_from(module, file, /*same_dtype=*/false);
}

WeightsInfo weights_info(const std::filesystem::path& file) {
  const auto metadata = checkpoint::read_safetensors_header(file).metadata;
  const auto config = metadata.find("demi.config"), precision = metadata.find("demi.precision");
  if (config == metadata.end() || precision == metadata.end()) {
    throw DataError({.where = "train.weights_info",
                     .what = "the file does not say which run it is from",
                     .seen = file.string(),
                     .accepted = "a ...model.safetensors of a run folder"});
  }
  WeightsInfo result{.precision = parse_precision(precision->second), .bytes = size_of(file)};
  for (const Assignment& a : read_config_text(config->second, file.string()))
    set(result.config, a.name, a.text, a.source);
  return result;
}

namespace {

// demi's optimizers by tensor, so that equal runs write equal files: the archive that every other
// torch::optim::Optimizer can write is ordered by addresses. '/' is in no name of a module.
void add_state(checkpoint::NamedTensors& tensors, const torch::optim::Optimizer& optimizer) {
  if (const auto* ours = dynamic_cast<const optim::Optimizer*>(&optimizer)) {
    for (const auto& [name, tensor] : ours->state_tensors()) tensors["optimizer/" + name] = tensor;
    std::vector<double> rates;
    for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
    tensors["optimizer/lr"] = at::tensor(rates, at::kDouble);
    return;
  }
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  std::string bytes = std::move(stream).str();
  tensors["optimizer"] =
      at::from_blob(bytes.data(), {static_cast<int64_t>(bytes.size())}, at::kByte).clone();
}

}  // namespace

int64_t save_training_state(const torch::nn::Module& module,
                            const torch::optim::Optimizer& optimizer, const History& history,
                            const std::filesystem::path& file) {
  checkpoint::NamedTensors tensors = tensors_of(module);
  add_state(tensors, optimizer);
  checkpoint::save_safetensors(file, tensors,
                               {{"demi.epoch", std::to_string(history.epochs.size())},
                                {"demi.step", std::to_string(history.steps.size())}});
  return size_of(file);
}

}  // namespace demi::train
