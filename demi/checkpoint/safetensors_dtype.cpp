#include "demi/checkpoint/safetensors_dtype.h"

#include <utility>

namespace demi::checkpoint {
namespace {

// In the order in which the reference implementation lays tensors out: wide ones first, so that
// each is aligned.
constexpr std::pair<std::string_view, c10::ScalarType> kNames[] = {
    {"U64", c10::ScalarType::UInt64},
    {"I64", c10::ScalarType::Long},
    {"F64", c10::ScalarType::Double},
    {"C64", c10::ScalarType::ComplexFloat},
    {"F32", c10::ScalarType::Float},
    {"U32", c10::ScalarType::UInt32},
    {"I32", c10::ScalarType::Int},
    {"BF16", c10::ScalarType::BFloat16},
    {"F16", c10::ScalarType::Half},
    {"U16", c10::ScalarType::UInt16},
    {"I16", c10::ScalarType::Short},
    {"F8_E4M3", c10::ScalarType::Float8_e4m3fn},
    {"F8_E5M2", c10::ScalarType::Float8_e5m2},
    {"I8", c10::ScalarType::Char},
    {"U8", c10::ScalarType::Byte},
    {"BOOL", c10::ScalarType::Bool},
};

}  // namespace

std::optional<std::string_view> safetensors_name(c10::ScalarType dtype) {
  for (const auto& [name, known] : kNames)
    if (known == dtype) return name;
  return std::nullopt;
}

int safetensors_rank(c10::ScalarType dtype) {
  int rank = 0;
  for (const auto& [name, known] : kNames) {
    if (known == dtype) break;
    ++rank;
  }
  return rank;
}

std::optional<c10::ScalarType> safetensors_dtype(std::string_view name) {
  for (const auto& [known, dtype] : kNames)
    if (known == name) return dtype;
  return std::nullopt;
}

}  // namespace demi::checkpoint
