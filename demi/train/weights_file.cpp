#include "demi/train/weights_file.h"

#include <ATen/ops/from_blob.h>
#include <torch/serialize/output-archive.h>

#include <sstream>

#include "demi/autocast/to_precision.h"
#include "demi/checkpoint/safetensors.h"
#include "demi/core/error.h"

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
                             const Precision& precision, const std::filesystem::path& file) {
  const torch::NoGradGuard no_grad;
  checkpoint::NamedTensors weights = tensors_of(spare);
  for (const auto& [name, tensor] : tensors_of(trained)) weights.at(name).copy_(tensor);
  to_precision(spare, precision.shipped());
  checkpoint::save_safetensors(file, tensors_of(spare),
                               {{"format", "pt"}, {"demi.precision", std::string(precision.name)}});
  return size_of(file);
}

void load_shipped_weights(torch::nn::Module& spare, const Precision& precision,
                          const std::filesystem::path& file) {
  const torch::NoGradGuard no_grad;
  to_precision(spare, precision.shipped());
  const checkpoint::Safetensors saved = checkpoint::load_safetensors(file);
  checkpoint::NamedTensors weights = tensors_of(spare);
  for (auto& [name, tensor] : weights) {
    const auto found = saved.tensors.find(name);
    if (found == saved.tensors.end() || found->second.sizes() != tensor.sizes() ||
        found->second.scalar_type() != tensor.scalar_type()) {
      throw DataError({.where = "train.load_shipped_weights",
                       .what = "the file " + file.string() + " does not fit the model",
                       .seen = found == saved.tensors.end() ? "no tensor " + name
                                                            : "another shape or dtype of " + name,
                       .advice = "name the model that it was saved from"});
    }
    tensor.copy_(found->second);
  }
}

int64_t save_training_state(const torch::nn::Module& module,
                            const torch::optim::Optimizer& optimizer, const History& history,
                            const std::filesystem::path& file) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  std::string bytes = std::move(stream).str();
  checkpoint::NamedTensors tensors = tensors_of(module);
  // The optimizer's own archive as one tensor of bytes: every torch::optim::Optimizer can write
  // one.
  tensors["optimizer"] =
      at::from_blob(bytes.data(), {static_cast<int64_t>(bytes.size())}, at::kByte);
  checkpoint::save_safetensors(file, tensors,
                               {{"demi.epoch", std::to_string(history.epochs.size())},
                                {"demi.step", std::to_string(history.steps.size())}});
  return size_of(file);
}

}  // namespace demi::train
