#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "demi/tensor/dtype.h"
#include "lab/report/table_json.h"
#include "lab/results/compare_report.h"
#include "lab/results/machine_json.h"
#include "lab/results/published.h"
#include "lab/settings/resolved.h"

namespace demi::results {
namespace {

// Settings by the names of demi::Backends. null: as LibTorch has it by itself, or as the precision
// says.
nlohmann::ordered_json json_of(const Backends& b) {
  const auto value = [](const auto& setting) {
    return setting ? nlohmann::ordered_json(*setting) : nlohmann::ordered_json();
  };
  return {
      {"cuda_matmul_allow_tf32", value(b.cuda_matmul_allow_tf32)},
      {"cudnn_allow_tf32", value(b.cudnn_allow_tf32)},
      {"allow_fp16_reduced_precision_reduction", value(b.allow_fp16_reduced_precision_reduction)},
      {"allow_bf16_reduced_precision_reduction", value(b.allow_bf16_reduced_precision_reduction)},
      {"cudnn_enabled", value(b.cudnn_enabled)},
      {"cudnn_benchmark", value(b.cudnn_benchmark)},
      {"cudnn_deterministic", value(b.cudnn_deterministic)},
      {"deterministic_algorithms", value(b.deterministic_algorithms)},
      {"threads", value(b.threads)}};
}

nlohmann::ordered_json json_of(const std::vector<monitor::Origin>& origins) {
  auto all = nlohmann::ordered_json::array();
  for (const monitor::Origin& origin : origins)
    all.push_back({{"step", origin.step},
                   {"place", std::string(monitor::name_of(origin.place))},
                   {"name", origin.name},
                   {"op", origin.op},
                   {"inner", origin.inner},
                   {"loss_scale", origin.is_loss_scale()},
                   {"text", monitor::to_string(origin)}});
  return all;
}

nlohmann::ordered_json json_of(const monitor::FormatLoss& loss) {
  return {{"elements", loss.elements},     {"zeros", loss.zeros},
          {"overflowed", loss.overflowed}, {"flushed", loss.flushed},
          {"subnormal", loss.subnormal},   {"greatest", loss.greatest},
          {"lost", loss.lost()},           {"first_overflow", loss.first_overflow}};
}

nlohmann::ordered_json json_of(const monitor::WhatIfResult& result, const std::string& policy) {
  nlohmann::ordered_json json{
      {"format", tensor::name_of(result.format)}, {"batches", result.batches},
      {"first_step", result.first_step},          {"last_step", result.last_step},
      {"least_scale", result.least_scale},        {"greatest_scale", result.greatest_scale},
      {"fp32_parts", result.fp32_parts()},        {"op_policy", policy}};
  json["diverged_step"] =
      result.diverged ? nlohmann::ordered_json(*result.diverged) : nlohmann::ordered_json();
  json["uncured"] =
      result.uncured ? nlohmann::ordered_json(cause_of(*result.uncured)) : nlohmann::ordered_json();
  json["cures"] = json["tensors"] = nlohmann::ordered_json::array();
  for (const monitor::Cure& cure : result.cures)
    json["cures"].push_back({{"kind", cure.kind == monitor::Cure::Kind::part ? "part" : "op"},
                             {"name", cure.name},
                             {"text", to_string(cure, result.format)}});
  for (const monitor::TensorFate& fate : result.tensors) {
    json["tensors"].push_back({{"layer", fate.layer},
                               {"op", fate.op},
                               {"tensor", std::string(name_of(fate.place))},
                               {"from", fate.from}});
    json["tensors"].back().update(json_of(fate.loss));
  }
  return json;
}

nlohmann::ordered_json json_of(const monitor::ProductLoss& loss) {
  return {{"error", loss.error},
          {"cosine", loss.cosine},
          {"elements", loss.operands.elements},
          {"saturated", loss.operands.saturated},
          {"underflowed", loss.operands.underflowed}};
}

nlohmann::ordered_json json_of(const monitor::RecipeWhatIfResult& result,
                               const std::string& policy) {
  nlohmann::ordered_json json{{"recipe", result.recipe},
                              {"threshold", result.threshold},
                              {"batches", result.batches},
                              {"first_step", result.first_step},
                              {"last_step", result.last_step},
                              {"seconds", result.seconds},
                              {"harmed", result.harmed()},
                              {"left_out", result.left_out},
                              {"none_fits", result.none_fits},
                              {"policy_batches", result.policy_batches},
                              {"against_bf16", result.against_region},
                              {"op_policy", policy},
                              {"refused", result.refused}};
  json["diverged_step"] =
      result.diverged ? nlohmann::ordered_json(*result.diverged) : nlohmann::ordered_json();
  json["layers"] = nlohmann::ordered_json::array();
  for (const monitor::LayerInRecipe& layer : result.layers) {
    json["layers"].push_back({{"name", layer.layer},
                              {"quantized", layer.quantized},
                              {"harmed", layer.harmed},
                              {"error", layer.error},
                              {"greatest_error", layer.greatest_error},
                              {"policy_error", layer.policy_error},
                              {"cause", std::string(name_of(layer.cause))},
                              {"from", layer.from},
                              {"text", cause_text(layer)}});
    if (!layer.quantized) continue;
    json["layers"].back().update({{"output", json_of(layer.products[0])},
                                  {"input_gradient", json_of(layer.products[1])},
                                  {"weight_gradient", json_of(layer.products[2])}});
  }
  return json;
}

nlohmann::ordered_json json_of(const recipes::RunResult& run) {
  nlohmann::ordered_json json;
  json["precision"] = run.spec.label;
  json["seconds"] = run.seconds;
  json["seconds_per_epoch"] = run.seconds_per_epoch;
  const auto number = [](const std::optional<double>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  json["steps"] = run.history.steps.size();
  json["epochs"] = run.history.epochs.size();
  json["test_loss"] = number(run.test_loss);
  json["test_accuracy"] = number(run.test_accuracy);
  if (run.top_k > 0)
    json[fmt::format("test_top{}_accuracy", run.top_k)] = number(run.test_top_k_accuracy);
  json["test_accuracy_fp32_eval"] = number(run.test_accuracy_fp32_eval);
  if (!run.class_accuracy.empty()) json["class_accuracy"] = run.class_accuracy;
  json["parameters"] = run.parameters;
  json["peak_bytes"] = run.peak_bytes;
  json["data_bytes"] = run.data_bytes;
  json["peak_resident_bytes"] = run.peak_resident_bytes > 0
                                    ? nlohmann::ordered_json(run.peak_resident_bytes)
                                    : nlohmann::ordered_json();
  json["model_bytes"] = run.model_bytes;
  json["checkpoint_bytes"] = run.checkpoint_bytes;
  json["skipped_steps"] = run.skipped_steps;
  if (run.flops) {
    json["tokens_per_second"] = run.flops->tokens_per_second;
    json["model_flop_per_token"] = run.flops->per_token;
    json["model_flop_per_second"] = run.flops->per_second();
    json["peak_flop_per_second"] = run.flops->peak_per_second > 0
                                       ? nlohmann::ordered_json(run.flops->peak_per_second)
                                       : nlohmann::ordered_json();
    json["model_flop_utilization"] = number(run.flops->share());
  }
  json["speedup"] = run.speedup;
  json["cores_share"] = number(run.cores_share);
  json["involuntary_switches"] = run.involuntary_switches;
  json["stopped"] = run.history.stopped;
  if (!run.slow_causes.empty()) {
    json["slow_causes"] = nlohmann::ordered_json::array();
    for (const recipes::SlowCause& cause : run.slow_causes)
      json["slow_causes"].push_back(
          {{"name", cause.name}, {"number", cause.number}, {"text", cause.text}});
  }
  if (!run.origins.empty()) json["anomalies"] = json_of(run.origins);
  if (run.what_if) json["what_if"] = json_of(*run.what_if, run.what_if_policy.string());
  if (run.recipe_what_if)
    json["what_if"] = json_of(*run.recipe_what_if, run.what_if_policy.string());
  json["failed"] =
      run.history.failed ? nlohmann::ordered_json(*run.history.failed) : nlohmann::ordered_json();
  return json;
}

}  // namespace

nlohmann::ordered_json json_of(const recipes::Comparison& c) {
  nlohmann::ordered_json json;
  json["recipe"] = c.recipe;
  json["model"] = c.config.model;
  json["data"] = c.config.data;
  json["epochs"] = c.config.epochs;
  json["batch_size"] = c.config.batch_size;
  json["learning_rate"] = c.config.lr;
  json["seed"] = c.config.seed;
  json["from"] = nullptr;
  if (!c.config.from.empty()) json["from"] = c.config.from;
  json["training_examples"] = c.training_examples;
  json["test_examples"] = c.test_examples;
  json["machine"] = json_of(c.machine);
  json["backends"] = json_of(settings::backends_of(c.config));
  json["interleave"] =
      c.turn_steps > 0 ? nlohmann::ordered_json(c.turn_steps) : nlohmann::ordered_json();
  json["runs"] = nlohmann::ordered_json::array();
  for (const recipes::RunResult& run : c.runs) {
    json["runs"].push_back(json_of(run));
    if (c.predicts_tokens && run.test_loss)
      json["runs"].back()["test_perplexity"] = std::exp(*run.test_loss);
    json["runs"].back()["disturbed"] = recipes::is_disturbed(c, run);
  }
  json["speedup"] =
      c.runs.size() > 1 ? nlohmann::ordered_json(c.runs[1].speedup) : nlohmann::ordered_json();
  json["stopped"] = c.stopped;
  json["notes"] = c.notes;
  if (const auto beside = published_beside(c)) json["published"] = json_of(*beside);
  return json;
}

}  // namespace demi::results
