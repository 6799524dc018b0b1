#include "demi/imported/stored_tensors.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "demi/core/error.h"
#include "demi/imported/field.h"
#include "demi/imported/graph_reader.h"

namespace demi::imported {
namespace {

std::int64_t fixed(const Field& field, const Extent& extent, bool positive) {
  if (!extent.expression.empty() || extent.fixed < 0 || (positive && extent.fixed == 0))
    field.refuse("is no size of a stored tensor", "integers that are not negative");
  return extent.fixed;
}

/// The bytes of the storage that the tensor reaches into, or nothing if they do not fit 63 bits.
std::optional<std::uint64_t> reach(const TensorMeta& meta) {
  std::int64_t last = meta.offset.fixed;
  for (std::size_t i = 0; i < meta.sizes.size(); ++i) {
    if (meta.sizes[i].fixed == 0) return 0;
    std::int64_t step = 0;
    if (__builtin_mul_overflow(meta.sizes[i].fixed - 1, meta.strides[i].fixed, &step) ||
        __builtin_add_overflow(last, step, &last))
      return std::nullopt;
  }
  std::int64_t bytes = 0;
  if (__builtin_add_overflow(last, 1, &last) ||
      __builtin_mul_overflow(last, static_cast<std::int64_t>(c10::elementSize(meta.dtype)), &bytes))
    return std::nullopt;
  return static_cast<std::uint64_t>(bytes);
}

void check_place(const Field& field, const TensorMeta& meta, const Record& record) {
  std::int64_t elements = 1;
  for (const Extent& size : meta.sizes)
    if (__builtin_mul_overflow(elements, std::max<std::int64_t>(fixed(field, size, false), 1),
                               &elements))
      field.refuse("has an impossible shape", "extents whose product fits 63 bits");
  for (const Extent& stride : meta.strides) fixed(field, stride, false);
  fixed(field, meta.offset, false);
  const std::optional<std::uint64_t> bytes = reach(meta);
  if (!bytes || *bytes > record.bytes)
    field.refuse(fmt::format("does not lie in the {} bytes of {}", record.bytes, record.name),
                 "sizes, strides and an offset that do");
}

StoredTensor read_one(const Field& field, const ZipArchive& archive, const std::string& folder) {
  if (field.at("use_pickle").get<bool>())
    field.refuse("is a tensor of a Python class of its own, which only a pickle holds",
                 "plain tensors: nothing of a file is unpickled here");
  StoredTensor stored{.record = folder + field.at("path_name").text(),
                      .meta = read_tensor_meta(field.at("tensor_meta")),
                      .is_parameter = field.at("is_param").get<bool>()};
  const Record* record = archive.find(stored.record);
  if (record == nullptr) field.refuse("has no bytes in the archive", "a record " + stored.record);
  check_place(field, stored.meta, *record);
  return stored;
}

bool same_place(const TensorMeta& a, const TensorMeta& b) {
  const auto same = [](const Extent& x, const Extent& y) { return x.fixed == y.fixed; };
  return a.dtype == b.dtype && same(a.offset, b.offset) &&
         std::ranges::equal(a.sizes, b.sizes, same) &&
         std::ranges::equal(a.strides, b.strides, same);
}

std::vector<std::int64_t> numbers(const std::vector<Extent>& extents) {
  std::vector<std::int64_t> result;
  for (const Extent& extent : extents) result.push_back(extent.fixed);
  return result;
}

/// Another byte in the place of a bool would be undefined behaviour.
void check_truth_values(const Record& record, const at::Tensor& bytes) {
  if (bytes.numel() == 0 || bytes.max().item<std::uint8_t>() <= 1) return;
  refuse<DataError>({.where = "imported.read",
                     .what = record.name + " holds a truth value that is neither",
                     .seen = fmt::to_string(bytes.max().item<std::uint8_t>()),
                     .accepted = "0 or 1",
                     .advice = "export it again"});
}

}  // namespace

std::uint64_t first_byte(const StoredTensor& stored) {
  return static_cast<std::uint64_t>(stored.meta.offset.fixed) * c10::elementSize(stored.meta.dtype);
}

std::uint64_t end_byte(const StoredTensor& stored) { return reach(stored.meta).value_or(0); }

bool same_tensor(const StoredTensor& a, const StoredTensor& b) {
  return a.record == b.record && same_place(a.meta, b.meta);
}

StoredTensors read_stored_tensors(const ZipArchive& archive, const std::string& config,
                                  const std::string& folder) {
  StoredTensors tensors;
  const Record* record = archive.find(config);
  if (record == nullptr) return tensors;
  const Source source{.file = archive.path(), .record = config};
  read_document(source, archive.text(*record), [&](const Field& document) {
    document.at("config").members([&](const std::string& name, const Field& one) {
      if (one.find("tensor_meta")) tensors.emplace(name, read_one(one, archive, folder));
    });
  });
  return tensors;
}

at::Tensor TensorReader::read(const StoredTensor& stored) {
  std::vector<Made>& of_record = made_[stored.record];
  for (const Made& made : of_record)
    if (same_place(made.meta, stored.meta)) return made.tensor;
  auto bytes = bytes_.find(stored.record);
  if (bytes == bytes_.end()) {
    const Record& record = *archive_.find(stored.record);
    at::Tensor memory = at::empty({static_cast<std::int64_t>(record.bytes)}, at::kByte);
    archive_.read(record, memory.mutable_data_ptr());
    if (stored.meta.dtype == c10::ScalarType::Bool) check_truth_values(record, memory);
    bytes = bytes_.emplace(stored.record, std::move(memory)).first;
  }
  at::Tensor tensor = at::empty({0}, at::TensorOptions().dtype(stored.meta.dtype));
  tensor.set_(bytes->second.storage(), stored.meta.offset.fixed, numbers(stored.meta.sizes),
              numbers(stored.meta.strides));
  of_record.push_back({stored.meta, tensor});
  return tensor;
}

}  // namespace demi::imported
