#include "lab/models/registry.h"

#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "demi/core/error.h"
#include "demi/tensor/module_tensors.h"
#include "lab/find_by_name.h"
#include "lab/models/entries.h"
#include "lab/models/imported.h"
#include "lab/models/more_models.h"
#include "lab/models/seeded.h"

namespace demi::models {
namespace {

std::vector<ModelInfo>& registry() {
  static std::vector<ModelInfo> all{
#define MODEL(name) name##_model(),
#include "lab/models/list.h"
#undef MODEL
  };
  return all;
}

}  // namespace

std::span<const ModelInfo> models() { return registry(); }

void add_model(ModelInfo info) { registry().push_back(std::move(info)); }

std::string head_of(const ModelInfo& info, const torch::nn::Module& model) {
  std::string name = info.head;
  const auto modules = model.named_modules("", /*include_self=*/false);
  for (const auto* found = modules.find(name);
       found != nullptr && (*found)->as<torch::nn::Sequential>() != nullptr;
       found = modules.find(name))
    name += "." + (*found)->named_children().keys().back();
  return name;
}

const ModelInfo& find_model(std::string_view name) {
  if (is_network_file(name)) return imported_file(name).info;
  return lab::find_by_name(models(), name, "models.find_model", "no such model");
}

const ModelInfo* model_named(std::string_view name) {
  const auto found = std::ranges::find(models(), name, &ModelInfo::name);
  return found == models().end() ? nullptr : &*found;
}

bool reads(const ModelInfo& model, data::Kind kind) {
  const bool reads_numbers = model.is_file && model.reads == data::Kind::texts;
  return model.reads == kind || (reads_numbers && kind == data::Kind::tokens);
}

train::Network make_model(std::string_view name, const ModelOptions& options, uint64_t seed) {
  const ModelInfo& info = find_model(name);
  const Seeded seeded(seed);
  return info.make(options);
}

int64_t parameter_count(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const auto& [name, parameter] : tensor::parameters_once(module))
    if (parameter.requires_grad()) count += parameter.numel();
  return count;
}

std::optional<Keep> parse_recompute(std::string_view name) {
  if (name == "none") return std::nullopt;
  if (name == "blocks") return Keep::nothing;
  if (name == "products") return Keep::products;
  refuse({.where = "models.parse_recompute",
          .what = "no such way to recompute",
          .seen = name,
          .accepted = "none, blocks, products"});
}

}  // namespace demi::models
