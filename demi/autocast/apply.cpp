#include "demi/autocast/apply.h"

#include <torch/nn/module.h>

#include "demi/autocast/parts.h"
#include "demi/autocast/to_precision.h"
#include "demi/core/error.h"
#include "demi/core/nearest.h"

namespace demi {

void apply(const Policy& policy, torch::nn::Module& module) {
  to_precision(module, policy.variable_dtype(), /*keep_normalisation_fp32=*/false);
  for (const auto& parameter : module.parameters()) mark_part(parameter, policy.compute_dtype());
  forget_dead_parts();
}

namespace {

torch::nn::Module& part_of(const torch::nn::Module& module, std::string_view part) {
  std::vector<std::string> known;
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    if (item.key() == part) return *item.value();
    known.push_back(item.key());
  }
  refuse({.where = "autocast.apply",
          .what = "the model has no part of that name",
          .seen = part,
          .advice = did_you_mean(part, known)});
}

}  // namespace

void apply(const Policy& policy, torch::nn::Module& module, std::string_view part) {
  demi::apply(policy, part_of(module, part));
}

void apply(const OpPolicy& policy, torch::nn::Module& module) {
  std::vector<torch::nn::Module*> parts;
  for (const std::string& part : policy.fp32_parts()) parts.push_back(&part_of(module, part));
  for (torch::nn::Module* part : parts) demi::apply(Policy("float32"), *part);
}

void unapply(torch::nn::Module& module) {
  for (const auto& parameter : module.parameters()) unmark_part(parameter);
  forget_dead_parts();
}

}  // namespace demi
