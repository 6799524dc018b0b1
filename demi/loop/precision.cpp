#include "demi/loop/precision.h"

#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "demi/autocast/policy.h"
#include "demi/core/error.h"
#include "demi/core/nearest.h"
#include "demi/quantization/recipe.h"

namespace demi {
namespace {

using c10::ScalarType;

const std::array<Precision, 7> kFormats{{
    {"fp32", ScalarType::Float, std::nullopt, false},
    {"tf32", ScalarType::Float, std::nullopt, true},
    {"fp16", ScalarType::Float, ScalarType::Half, false},
    {"bf16", ScalarType::Float, ScalarType::BFloat16, false},
    {"fp64", ScalarType::Double, std::nullopt, false},
    {"fp16-true", ScalarType::Half, std::nullopt, false},
    {"bf16-true", ScalarType::BFloat16, std::nullopt, false},
}};

// A recipe's layers lie in a region of bf16.
std::vector<Precision> formats_and_recipes() {
  std::vector<Precision> all(kFormats.begin(), kFormats.end());
  for (const quantization::Recipe& recipe : quantization::recipes())
    all.push_back({recipe.name, ScalarType::Float, ScalarType::BFloat16, false, recipe.name});
  return all;
}

constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
    {"32", "fp32"},
    {"32-true", "fp32"},
    {"float32", "fp32"},
    {"16", "fp16"},
    {"16-mixed", "fp16"},
    {"fp16-mixed", "fp16"},
    {"mixed_float16", "fp16"},
    {"16-true", "fp16-true"},
    {"bf16-mixed", "bf16"},
    {"mixed_bfloat16", "bf16"},
    {"64", "fp64"},
    {"64-true", "fp64"},
    {"float64", "fp64"},
    {"bfloat16", "bf16-true"},
    {"float16", "fp16-true"},
};

// Words that other programs have, and that say too little here.
constexpr std::pair<std::string_view, std::string_view> kMeant[] = {
    {"half", "fp16 (mixed precision) or fp16-true (the weights, too)"},
    {"amp", "fp16 (on a GPU) or bf16 (on a CPU)"},
    {"mixed", "fp16 (on a GPU) or bf16 (on a CPU)"},
    {"float", "fp32"},
    {"single", "fp32"},
    {"full", "fp32"},
    {"double", "fp64"},
};

double parse_scale(std::string_view text) {
  double value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size() || !(value > 0) ||
      !std::isfinite(value)) {
    throw UsageError(
        {.where = "loop.parse_loss_scale",
         .what = "the loss scale is not a positive number",
         .seen = text,
         .accepted = "auto, dynamic, statistics, off, or a number such as 128 or 65536"});
  }
  return value;
}

}  // namespace

std::span<const Precision> precisions() {
  static const auto* all = new std::vector<Precision>(formats_and_recipes());
  return *all;
}

const Precision& parse_precision(std::string_view name) {
  std::string_view wanted = name;
  for (const auto& [other, ours] : kOtherNames) {
    if (other == name) wanted = ours;
  }
  for (const Precision& precision : precisions()) {
    if (precision.name == wanted) return precision;
  }
  std::vector<std::string> known;
  for (const Precision& precision : precisions()) known.emplace_back(precision.name);
  std::string advice = did_you_mean(name, known);
  for (const auto& [word, meant] : kMeant)
    if (word == name)
      advice = "did you mean " + std::string(meant) + "? " + did_you_mean("", known);
  throw UsageError({.where = "loop.parse_precision",
                    .what = "no such precision",
                    .seen = name,
                    .advice = advice});
}

const Precision& mixed_precision_of(c10::DeviceType device) {
  return parse_precision(device == c10::DeviceType::CUDA ? "fp16" : "bf16");
}

const Precision& global_precision() {
  const std::string_view name = global_policy().name();
  return parse_precision(name);
}

LossScale parse_loss_scale(std::string_view text) {
  if (text == "auto" || text == "automatic") return {};
  if (text == "dynamic") return {LossScale::Kind::dynamic, 0};
  if (text == "statistics") return {LossScale::Kind::statistics, 0};
  if (text == "off") return {LossScale::Kind::off, 0};
  return {LossScale::Kind::fixed, parse_scale(text)};
}

}  // namespace demi
