#include "demi/core/dtype.h"

#include <array>
#include <cctype>
#include <utility>
#include <vector>

#include "demi/core/error.h"
#include "demi/core/nearest.h"

namespace demi {
namespace {

constexpr std::array<Format, 8> kFormats{{
    {Dtype::fp64, "fp64", 8, 11, 52, 1023, true, true},
    {Dtype::fp32, "fp32", 4, 8, 23, 127, true, true},
    {Dtype::tf32, "tf32", 4, 8, 10, 127, true, true},
    {Dtype::fp16, "fp16", 2, 5, 10, 15, true, true},
    {Dtype::bf16, "bf16", 2, 8, 7, 127, true, true},
    {Dtype::fp8_e4m3, "fp8_e4m3", 1, 4, 3, 7, false, true},
    {Dtype::fp8_e5m2, "fp8_e5m2", 1, 5, 2, 15, true, true},
    {Dtype::fp4_e2m1, "fp4_e2m1", 1, 2, 1, 1, false, false},
}};

constexpr std::pair<std::string_view, Dtype> kOtherNames[] = {
    {"double", Dtype::fp64},
    {"float64", Dtype::fp64},
    {"binary64", Dtype::fp64},
    {"single", Dtype::fp32},
    {"float", Dtype::fp32},
    {"float32", Dtype::fp32},
    {"binary32", Dtype::fp32},
    {"tensorfloat32", Dtype::tf32},
    {"half", Dtype::fp16},
    {"float16", Dtype::fp16},
    {"binary16", Dtype::fp16},
    {"bfloat16", Dtype::bf16},
    {"float8_e4m3fn", Dtype::fp8_e4m3},
    {"fp8_e4m3fn", Dtype::fp8_e4m3},
    {"e4m3fn", Dtype::fp8_e4m3},
    {"e4m3", Dtype::fp8_e4m3},
    {"float8_e5m2", Dtype::fp8_e5m2},
    {"e5m2", Dtype::fp8_e5m2},
    {"float4_e2m1fn", Dtype::fp4_e2m1},
    {"float4_e2m1fn_x2", Dtype::fp4_e2m1},
    {"e2m1", Dtype::fp4_e2m1},
    {"fp4", Dtype::fp4_e2m1},
};

}  // namespace

std::span<const Format> formats() { return kFormats; }

const Format& format_of(Dtype dtype) { return kFormats[static_cast<std::size_t>(dtype)]; }

std::string_view name_of(Dtype dtype) { return format_of(dtype).name; }

std::optional<Dtype> find_dtype(std::string_view name) {
  std::string lower(name);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const Format& format : kFormats) {
    if (format.name == lower) return format.dtype;
  }
  for (const auto& [other, dtype] : kOtherNames) {
    if (other == lower) return dtype;
  }
  return std::nullopt;
}

Dtype parse_dtype(std::string_view name) {
  if (const auto dtype = find_dtype(name)) return *dtype;
  std::vector<std::string> known;
  for (const Format& format : kFormats) known.emplace_back(format.name);
  throw UsageError({.where = "core.parse_dtype",
                    .what = "no such dtype",
                    .seen = name,
                    .advice = did_you_mean(name, known)});
}

}  // namespace demi
