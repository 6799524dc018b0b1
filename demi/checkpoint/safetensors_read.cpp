#include "demi/checkpoint/safetensors.h"
#include "demi/checkpoint/safetensors_input.h"

namespace demi::checkpoint {
namespace {

constexpr std::string_view kLoadSafetensors = "checkpoint.load_safetensors";

}  // namespace

SafetensorsHeader read_safetensors_header(const std::filesystem::path& file) {
  return SafetensorsInput(file, kLoadSafetensors).header();
}

Safetensors load_safetensors(const std::filesystem::path& file) {
  const SafetensorsInput input(file, kLoadSafetensors);
  return {.tensors = input.load(nullptr), .metadata = input.header().metadata};
}

}  // namespace demi::checkpoint
