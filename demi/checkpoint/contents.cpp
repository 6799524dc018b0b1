#include "demi/checkpoint/contents.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "demi/checkpoint/checkpoint.h"
#include "demi/checkpoint/folder.h"
#include "demi/checkpoint/input_file.h"
#include "demi/checkpoint/manifest.h"
#include "demi/checkpoint/safetensors_header.h"
#include "demi/checkpoint/safetensors_read.h"

namespace demi::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kContents = "checkpoint.contents";

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

/// The run of digits that begins at `at`, without leading zeros.
std::string_view digits(std::string_view text, std::size_t at) {
  std::size_t end = at;
  while (end < text.size() && is_digit(text[end])) ++end;
  while (at + 1 < end && text[at] == '0') ++at;
  return text.substr(at, end - at);
}

void add(std::vector<StoredTensor>& tensors, const fs::path& file, const SafetensorsHeader& header,
         const FileRecord* record, bool of_model) {
  const auto first = static_cast<std::ptrdiff_t>(tensors.size());
  for (const TensorPlace& place : header.tensors) {
    StoredTensor& tensor = tensors.emplace_back();
    tensor.name = place.name;
    tensor.dtype = *safetensors_dtype(place.dtype);  // the header was checked
    tensor.shape = place.shape;
    tensor.bytes = place.end - place.begin;
    tensor.file = file;
    tensor.offset = header.data_start + place.begin;
    tensor.of_model = of_model;
    if (record) tensor.checksum = fmt::format("{:08x}", record->tensors.at(place.name));
  }
  std::sort(tensors.begin() + first, tensors.end(),
            [](const auto& a, const auto& b) { return natural_less(a.name, b.name); });
}

/// The record of a single file, if the manifest that names it is in the same folder.
std::optional<FileRecord> record_beside(const fs::path& file) {
  if (!has_manifest(file.parent_path())) return std::nullopt;
  const Manifest manifest = read_manifest(file.parent_path());
  const auto found = manifest.files.find(file.filename());
  if (found == manifest.files.end()) return std::nullopt;
  return found->second;
}

Contents contents_of_file(const fs::path& path) {
  const SafetensorsInput input(path, kContents);
  const std::optional<FileRecord> record = record_beside(path);
  if (record) input.expect(*record);
  Contents found{.path = path, .metadata = input.header().metadata};
  add(found.tensors, path, input.header(), record ? &*record : nullptr, /*of_model=*/true);
  return found;
}

Contents contents_of_checkpoint(const fs::path& folder) {
  Manifest manifest = read_manifest(folder);
  Contents found{.path = folder,
                 .is_file = false,
                 .metadata = std::move(manifest.text),
                 .numbers = std::move(manifest.numbers),
                 .step = manifest.step,
                 .demi = manifest.demi,
                 .libtorch = manifest.libtorch};
  for (const auto& [name, record] : manifest.files) {
    const SafetensorsInput input(folder / name, kContents);
    input.expect(record);
    found.metadata.merge(texts_of(input.header(), record));
    add(found.tensors, folder / name, input.header(), &record, name == kModelFile);
  }
  return found;
}

}  // namespace

int64_t StoredTensor::elements() const {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

bool natural_less(std::string_view a, std::string_view b) {
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (is_digit(a[i]) && is_digit(b[j])) {
      const std::string_view x = digits(a, i), y = digits(b, j);
      if (x != y) return x.size() != y.size() ? x.size() < y.size() : x < y;
      while (i < a.size() && is_digit(a[i])) ++i;
      while (j < b.size() && is_digit(b[j])) ++j;
    } else if (a[i] != b[j]) {
      return static_cast<unsigned char>(a[i]) < static_cast<unsigned char>(b[j]);
    } else {
      ++i;
      ++j;
    }
  }
  const bool a_ends = i == a.size(), b_ends = j == b.size();
  return a_ends != b_ends ? a_ends : a < b;  // equal but for leading zeros
}

Contents contents(const fs::path& path) {
  Contents found;
  read_current(path, [&](const fs::path& one) {
    found = is_single_file(one) ? contents_of_file(one) : contents_of_checkpoint(one);
  });
  return found;
}

void verify(const Contents& contents) {
  if (contents.is_file) {
    const std::optional<FileRecord> record = record_beside(contents.path);
    return SafetensorsInput(contents.path, kContents).verify(record ? &*record : nullptr);
  }
  for (const auto& [name, record] : read_manifest(contents.path).files)
    SafetensorsInput(contents.path / name, kContents).verify(&record);
}

StoredValues::StoredValues(const StoredTensor& tensor)
    : file_(std::make_shared<const InputFile>(tensor.file, kContents, "a safetensors file")),
      dtype_(tensor.dtype),
      offset_(tensor.offset),
      left_(tensor.elements()) {}

at::Tensor StoredValues::next() {
  if (left_ == 0) return {};
  at::Tensor part = at::empty({std::min(kPart, left_)}, at::TensorOptions().dtype(dtype_));
  file_->read(part.mutable_data_ptr(), offset_, part.nbytes());
  offset_ += part.nbytes();
  left_ -= part.numel();
  return part;
}

}  // namespace demi::checkpoint
