#include "demi/checkpoint/safetensors_read.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "demi/checkpoint/content_checksum.h"
#include "demi/checkpoint/safetensors_header.h"
#include "demi/core/crc32c.h"
#include "demi/core/error.h"
#include "demi/core/huge_pages.h"

namespace demi::checkpoint {
namespace {

/// Small enough to stay in the processor's cache between its reading and its checksum.
constexpr uint64_t kPieceBytes = uint64_t{256} << 10;

std::string hexadecimal(uint32_t checksum) { return fmt::format("{:08x}", checksum); }

/// Elements x bytes each. Extents of 0 count as 1 in the bound: LibTorch's strides are their
/// product.
uint64_t byte_count(const Fault& fail, const TensorPlace& place) {
  const auto dtype = safetensors_dtype(place.dtype);
  if (!dtype)
    fail(fmt::format("the dtype of {} is unknown", excerpt(place.name)), 8, place.dtype,
         "F64 F32 F16 BF16 F8_E4M3 F8_E5M2 C64 I64 I32 I16 I8 U64 U32 U16 U8 BOOL");
  uint64_t bytes = c10::elementSize(*dtype);
  bool empty = false;
  for (int64_t extent : place.shape) {
    empty |= extent == 0;
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(std::max<int64_t>(extent, 1)),
                               &bytes) ||
        bytes > INT64_MAX)
      fail(fmt::format("the shape of {} is impossible", excerpt(place.name)), 8,
           fmt::format("{}", fmt::join(place.shape, " x ")),
           "extents whose product, of those above 0, fits 63 bits");
  }
  return empty ? 0 : bytes;
}

/// Every byte after the header belongs to exactly one tensor.
void check_places(const InputFile& file, const SafetensorsHeader& header) {
  const Fault& fail = file.fault();
  uint64_t next = 0;
  for (const TensorPlace& place : header.tensors) {
    if (place.begin != next || place.end < place.begin)
      fail(fmt::format("{} leaves a gap or overlaps", excerpt(place.name)),
           header.data_start + std::min(next, place.begin),
           fmt::format("[{}, {}]", place.begin, place.end), fmt::format("to begin at {}", next));
    if (const uint64_t bytes = byte_count(fail, place); place.end - place.begin != bytes)
      fail(fmt::format("the size of {} does not fit its shape", excerpt(place.name)),
           header.data_start + place.begin, fmt::format("{} bytes", place.end - place.begin),
           fmt::to_string(bytes));
    next = place.end;
  }
  if (next != file.bytes() - header.data_start)
    fail("the file's size does not fit its header", file.bytes(),
         fmt::format("{} bytes of values", file.bytes() - header.data_start), fmt::to_string(next));
}

void check_bool(const Fault& fail, const TensorPlace& place, uint64_t offset, const char* values,
                uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; ++i)
    if (const auto value = static_cast<unsigned char>(values[i]); value > 1)
      fail(fmt::format("{} holds a truth value that is neither", excerpt(place.name)), offset + i,
           fmt::to_string(value), "0 or 1");
}

/// Throws DataError if the first bytes are those of another kind of file.
void refuse_other_kind(const InputFile& file, std::string_view first) {
  const FileKind kind = file_kind(first);
  if (kind.name.empty()) return;
  throw DataError({.where = file.fault().where,
                   .what = fmt::format("{} is no safetensors file", file.fault().path.string()),
                   .seen = kind.name,
                   .accepted = "a safetensors file",
                   .advice = kind.advice});
}

constexpr std::string_view kLoadSafetensors = "checkpoint.load_safetensors";

}  // namespace

/// Checksums of what was read: of the tensor, and of the file up to its end.
struct SafetensorsInput::Sums {
  uint32_t tensor = 0, file = 0;
  std::vector<TensorSum> tensors = {};  // if the content has a checksum
};

SafetensorsInput::SafetensorsInput(const std::filesystem::path& path, std::string_view where)
    : file_(path, where, "a safetensors file"), header_(read_header()) {}

SafetensorsHeader SafetensorsInput::read_header() {
  const Fault& fail = file_.fault();
  std::array<unsigned char, 8> raw{};
  file_.read(raw.data(), 0, raw.size());
  uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i) length |= uint64_t{raw[i]} << (8 * i);
  if (length > kLongestHeader || length > file_.bytes() - 8) {
    refuse_other_kind(file_, {reinterpret_cast<const char*>(raw.data()), raw.size()});
    fail("the header's length is impossible", 0, fmt::to_string(length),
         fmt::format("at most {}", std::min(kLongestHeader, file_.bytes() - 8)));
  }
  std::string text(length, '\0');
  file_.read(text.data(), 8, length);
  header_sum_ = crc32c(text.data(), text.size(), crc32c(raw.data(), raw.size()));
  SafetensorsHeader header = parse_header(fail, text);
  header.data_start = 8 + length;
  check_places(file_, header);
  return header;
}

void SafetensorsInput::read_values(const TensorPlace& place, char* to, Sums* sums) const {
  std::vector<char> spare(to == nullptr ? std::min(place.end - place.begin, kPieceBytes) : 0);
  uint64_t piece = 0;
  for (uint64_t at = place.begin; at < place.end; at += piece) {
    piece = std::min(place.end - at, kPieceBytes);
    char* values = to == nullptr ? spare.data() : to + (at - place.begin);
    file_.read(values, header_.data_start + at, piece);
    if (sums != nullptr) sums->tensor = crc32c(values, piece, sums->tensor);
    if (place.dtype == "BOOL")
      check_bool(file_.fault(), place, header_.data_start + at, values, piece);
  }
}

void SafetensorsInput::expect(const FileRecord& record) const {
  const Fault& fail = file_.fault();
  if (file_.bytes() != record.bytes)
    fail("the file has another size than its manifest says", file_.bytes(),
         fmt::format("{} bytes", file_.bytes()), fmt::to_string(record.bytes));
  for (const TensorPlace& place : header_.tensors)
    if (!record.tensors.contains(place.name))
      fail("the manifest knows no such tensor", 8, place.name, "the tensors of the manifest");
  if (header_.tensors.size() != record.tensors.size())
    fail("tensors of the manifest are missing", 8, fmt::to_string(header_.tensors.size()),
         fmt::to_string(record.tensors.size()));
  for (const auto& [name, sum] : record.texts) {
    const auto text = header_.metadata.find(name);
    if (text == header_.metadata.end())
      fail("a text of the manifest is missing", 8, "no entry of that name", name);
    if (const uint32_t seen = crc32c(text->second); seen != sum)
      fail(fmt::format("the text {} is damaged", excerpt(name)), 8,
           fmt::format("checksum {}", hexadecimal(seen)), hexadecimal(sum));
  }
}

void SafetensorsInput::expect_tensor(const FileRecord* record, const TensorPlace& place,
                                     Sums& sums) const {
  if (record != nullptr) {
    const uint32_t expected = record->tensors.at(place.name);
    if (sums.tensor != expected)
      file_.fault()(fmt::format("the values of {} are damaged", excerpt(place.name)),
                    header_.data_start + place.begin,
                    fmt::format("checksum {}", hexadecimal(sums.tensor)), hexadecimal(expected));
    sums.file = crc32c_of_both(sums.file, sums.tensor, place.end - place.begin);
  }
  if (has_content_checksum())
    sums.tensors.push_back({place.name, place.dtype, place.shape, sums.tensor});
  sums.tensor = 0;
}

bool SafetensorsInput::has_content_checksum() const {
  return header_.metadata.contains(std::string(kContentChecksum));
}

void SafetensorsInput::expect_content(const Sums& sums) const {
  if (!has_content_checksum()) return;
  const std::string seen = hexadecimal(content_checksum(header_.metadata, sums.tensors));
  const std::string& expected = header_.metadata.at(std::string(kContentChecksum));
  if (seen == expected) return;
  throw DataError(
      {.where = file_.fault().where,
       .what = file_.fault().path.string() +
               " is not what its own checksum says: values or texts were changed after it was "
               "written",
       .seen = "checksum " + seen,
       .accepted = fmt::format("{}, its {}", excerpt(expected), kContentChecksum),
       .advice =
           "`demi inspect --verify FILE` checks a file; get an undamaged copy, or, if another "
           "program changed it on purpose, let that save it without the entries demi."});
}

void SafetensorsInput::expect_file(const FileRecord& record, const Sums& sums) const {
  if (sums.file != record.checksum)
    file_.fault()("the header is damaged", 0,
                  fmt::format("checksum of the file {}", hexadecimal(sums.file)),
                  hexadecimal(record.checksum));
}

at::Tensor SafetensorsInput::read_tensor(const TensorPlace& place, Sums* sums) const {
  at::Tensor tensor =
      at::empty(place.shape, at::TensorOptions().dtype(*safetensors_dtype(place.dtype)));
  prefer_huge_pages(tensor.mutable_data_ptr(), tensor.nbytes());
  read_values(place, static_cast<char*>(tensor.mutable_data_ptr()), sums);
  return tensor;
}

NamedTensors SafetensorsInput::load(const FileRecord* record) const {
  const bool is_summed = record != nullptr || has_content_checksum();
  NamedTensors tensors;
  Sums sums{.file = header_sum_};
  for (const TensorPlace& place : header_.tensors) {
    at::Tensor tensor = read_tensor(place, is_summed ? &sums : nullptr);
    expect_tensor(record, place, sums);
    tensors.emplace(place.name, std::move(tensor));
  }
  if (record != nullptr) expect_file(*record, sums);
  expect_content(sums);
  return tensors;
}

void SafetensorsInput::verify(const FileRecord* record) const {
  const bool is_summed = record != nullptr || has_content_checksum();
  Sums sums{.file = header_sum_};
  for (const TensorPlace& place : header_.tensors) {
    read_values(place, nullptr, is_summed ? &sums : nullptr);
    expect_tensor(record, place, sums);
  }
  if (record != nullptr) expect_file(*record, sums);
  expect_content(sums);
}

void SafetensorsInput::verify_content() const {
  if (has_content_checksum()) verify(nullptr);
}

NamedTensors SafetensorsInput::map() const {
  const std::shared_ptr<const Mapping> mapping = file_.map();
  NamedTensors tensors;
  for (const TensorPlace& place : header_.tensors) {
    const c10::ScalarType dtype = *safetensors_dtype(place.dtype);
    const uint64_t begin = header_.data_start + place.begin, end = header_.data_start + place.end;
    // Other writers need not align the values; the kernels that read them count on it.
    const bool aligned = begin % c10::elementSize(dtype) == 0;
    const auto release = [mapping, begin, end](void*) { mapping->release(begin, end); };
    tensors.emplace(place.name, aligned ? at::from_blob(mapping->data() + begin, place.shape,
                                                        release, at::TensorOptions().dtype(dtype))
                                        : read_tensor(place, nullptr));
  }
  return tensors;
}

Metadata texts_of(const SafetensorsHeader& header, const FileRecord& record) {
  Metadata texts;
  for (const auto& [name, sum] : record.texts)
    if (const auto found = header.metadata.find(name); found != header.metadata.end())
      texts.insert(*found);
  return texts;
}

SafetensorsHeader read_safetensors_header(const std::filesystem::path& file) {
  return SafetensorsInput(file, kLoadSafetensors).header();
}

Safetensors load_safetensors(const std::filesystem::path& file) {
  const SafetensorsInput input(file, kLoadSafetensors);
  return {.tensors = input.load(nullptr), .metadata = input.header().metadata};
}

}  // namespace demi::checkpoint
