#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "demi/checkpoint/safetensors.h"
#include "demi/checkpoint/safetensors_dtype.h"
#include "demi/checkpoint/safetensors_header.h"
#include "demi/core/atomic_file.h"
#include "demi/core/error.h"

namespace demi::checkpoint {
namespace {

using Entry = const NamedTensors::value_type*;

[[noreturn]] void refuse(const std::string& what, std::string_view seen,
                         std::string_view accepted) {
  throw UsageError(
      {.where = "checkpoint.save_safetensors", .what = what, .seen = seen, .accepted = accepted});
}

void check(const std::string& name, const at::Tensor& tensor) {
  if (name == "__metadata__")
    refuse("a tensor's name is taken by the format", name, "any other name");
  if (!tensor.defined()) refuse("a tensor is undefined", name, "tensors with values");
  if (tensor.layout() != at::kStrided) refuse("a tensor is not dense", name, "dense tensors");
  if (static_cast<std::size_t>(tensor.dim()) > kMostDimensions)
    refuse(fmt::format("{} has too many dimensions", name), fmt::to_string(tensor.dim()),
           fmt::format("at most {}", kMostDimensions));
  if (!safetensors_name(tensor.scalar_type()))
    refuse(fmt::format("the format has no word for the dtype of {}", name),
           toString(tensor.scalar_type()),
           "fp64 fp32 fp16 bf16 fp8_e4m3 fp8_e5m2, complex64, integers, bool");
}

std::vector<Entry> in_file_order(const NamedTensors& tensors) {
  std::vector<Entry> entries;
  for (const auto& entry : tensors) {
    check(entry.first, entry.second);
    entries.push_back(&entry);
  }
  std::ranges::stable_sort(entries, {},
                           [](Entry e) { return safetensors_rank(e->second.scalar_type()); });
  return entries;
}

std::string header(const std::vector<Entry>& entries, const Metadata& metadata) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (Entry entry : entries) {
    const auto& [name, tensor] = *entry;
    nlohmann::ordered_json& item = json[name];
    const uint64_t end = offset + tensor.nbytes();
    item["dtype"] = *safetensors_name(tensor.scalar_type());
    item["shape"] = tensor.sizes().vec();
    item["data_offsets"] = {offset, end};
    offset = end;
  }
  std::string text;
  try {
    text = json.dump();
  } catch (const nlohmann::json::type_error& error) {
    refuse("a name or a metadata entry is not UTF-8", error.what(), "UTF-8");
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

std::array<unsigned char, 8> little_endian(uint64_t value) {
  std::array<unsigned char, 8> bytes;
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<unsigned char>(value >> (8 * i));
  return bytes;
}

}  // namespace

void save_safetensors(const std::filesystem::path& file, const NamedTensors& tensors,
                      const Metadata& metadata) {
  if (metadata.size() > kMostMetadata)
    refuse("there are too many metadata entries", fmt::to_string(metadata.size()),
           fmt::format("at most {}", kMostMetadata));
  const std::vector<Entry> entries = in_file_order(tensors);
  const std::string text = header(entries, metadata);
  AtomicFile out(file);
  const auto length = little_endian(text.size());
  out.write(length.data(), length.size());
  out.write(text);
  for (Entry entry : entries) {
    const at::Tensor values =
        entry->second.detach().cpu().resolve_conj().resolve_neg().contiguous();
    out.write(values.const_data_ptr(), values.nbytes());
  }
  out.commit();
}

}  // namespace demi::checkpoint
