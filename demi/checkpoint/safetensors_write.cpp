#include "demi/checkpoint/safetensors_write.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "demi/checkpoint/safetensors_header.h"
#include "demi/core/atomic_file.h"
#include "demi/core/crc32c.h"
#include "demi/core/error.h"

namespace demi::checkpoint {
namespace {

using Entry = const NamedTensors::value_type*;

/// Throws errors about what is to be saved.
struct Refusal {
  std::string_view where;

  [[noreturn]] void operator()(const std::string& what, std::string_view seen,
                               std::string_view accepted) const {
    throw UsageError({.where = where, .what = what, .seen = seen, .accepted = accepted});
  }
};

void check(const Refusal& refuse, const std::string& name, const at::Tensor& tensor) {
  if (name == "__metadata__")
    refuse("a tensor's name is taken by the format", name, "any other name");
  if (!tensor.defined()) refuse("a tensor is undefined", name, "tensors with values");
  if (tensor.is_meta()) refuse("a tensor has a shape alone", name, "tensors with values");
  if (tensor.layout() != at::kStrided) refuse("a tensor is not dense", name, "dense tensors");
  if (static_cast<std::size_t>(tensor.dim()) > kMostDimensions)
    refuse(fmt::format("{} has too many dimensions", name), fmt::to_string(tensor.dim()),
           fmt::format("at most {}", kMostDimensions));
  if (!safetensors_name(tensor.scalar_type()))
    refuse(fmt::format("the format has no word for the dtype of {}", name),
           toString(tensor.scalar_type()),
           "fp64 fp32 fp16 bf16 fp8_e4m3 fp8_e5m2, complex64, integers, bool");
}

std::vector<Entry> in_file_order(const Refusal& refuse, const NamedTensors& tensors) {
  std::vector<Entry> entries;
  for (const auto& entry : tensors) {
    check(refuse, entry.first, entry.second);
    entries.push_back(&entry);
  }
  std::ranges::stable_sort(entries, {},
                           [](Entry e) { return safetensors_rank(e->second.scalar_type()); });
  return entries;
}

std::string json_header(const Refusal& refuse, const std::vector<Entry>& entries,
                        const Metadata& metadata) {
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
  if (text.size() > kLongestHeader)
    refuse("names and metadata are too long", fmt::format("{} bytes", text.size()),
           fmt::format("at most {}", kLongestHeader));
  return text;
}

std::string little_endian(uint64_t value) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(value >> (8 * i));
  return bytes;
}

/// Writes the bytes and returns the checksum of what was written. Each piece is summed and written
/// from a copy, which stays in the processor's cache: another thread may write to the values.
uint32_t write_and_sum(const Descriptor& file, const void* data, uint64_t bytes) {
  constexpr uint64_t kPiece = uint64_t{256} << 10, kStart = uint64_t{8} << 20;
  const char* next = static_cast<const char*>(data);
  std::vector<char> copy(std::min(bytes, kPiece));
  uint32_t sum = 0;
  uint64_t written = 0;
  for (uint64_t piece = 0; bytes > 0; bytes -= piece, next += piece) {
    piece = std::min(bytes, kPiece);
    std::memcpy(copy.data(), next, piece);
    sum = crc32c(copy.data(), piece, sum);
    file.write_all(copy.data(), piece);
    if ((written += piece) >= kStart) {
      file.start_sync();
      written = 0;
    }
  }
  return sum;
}

constexpr std::string_view kNoChecksum = "00000000";  // until the values are written

/// The place of the content's checksum in the header. Quotes within names and texts are escaped.
std::size_t place_of_checksum(std::string_view header) {
  const std::string entry = fmt::format(R"("{}":"{}")", kContentChecksum, kNoChecksum);
  return header.find(entry) + entry.size() - 1 - kNoChecksum.size();
}

}  // namespace

SafetensorsLayout::SafetensorsLayout(const NamedTensors& tensors, const Metadata& metadata,
                                     std::string_view where) {
  const Refusal refuse{where};
  if (metadata.size() > kMostMetadata)
    refuse("there are too many metadata entries", fmt::to_string(metadata.size()),
           fmt::format("at most {}", kMostMetadata));
  entries_ = in_file_order(refuse, tensors);
  const bool is_summed = metadata.contains(std::string(kContentChecksum));
  if (is_summed) {
    metadata_ = metadata;
    metadata_[std::string(kContentChecksum)] = kNoChecksum;
  }
  const std::string text = json_header(refuse, entries_, is_summed ? metadata_ : metadata);
  header_ = little_endian(text.size()) + text;
}

FileRecord SafetensorsLayout::write(const Descriptor& file) const {
  FileRecord record{.bytes = header_.size(), .tensors = {}, .texts = {}};
  const uint32_t header = write_and_sum(file, header_.data(), header_.size());
  std::vector<TensorSum> sums;
  uint32_t values_sum = 0;
  for (Entry entry : entries_) {
    const at::Tensor values =
        entry->second.detach().cpu().resolve_conj().resolve_neg().contiguous();
    const uint32_t sum = write_and_sum(file, values.const_data_ptr(), values.nbytes());
    record.tensors.emplace(entry->first, sum);
    values_sum = crc32c_of_both(values_sum, sum, values.nbytes());
    record.bytes += values.nbytes();
    if (!metadata_.empty())
      sums.push_back({entry->first, std::string(*safetensors_name(values.scalar_type())),
                      values.sizes().vec(), sum});
  }
  const uint64_t value_bytes = record.bytes - header_.size();
  record.checksum = crc32c_of_both(
      metadata_.empty() ? header : write_checksum(file, std::move(sums)), values_sum, value_bytes);
  return record;
}

uint32_t SafetensorsLayout::write_checksum(const Descriptor& file,
                                           std::vector<TensorSum> sums) const {
  const std::size_t place = place_of_checksum(header_);
  const std::string text = fmt::format("{:08x}", content_checksum(metadata_, std::move(sums)));
  file.write_at(text, place);
  std::string header = header_;
  return crc32c(header.replace(place, text.size(), text));
}

void save_safetensors(const std::filesystem::path& file, const NamedTensors& tensors,
                      const Metadata& metadata) {
  const SafetensorsLayout layout(tensors, metadata, "checkpoint.save_safetensors");
  AtomicFile out(file);
  layout.write(out.descriptor());
  out.commit();
}

}  // namespace demi::checkpoint
