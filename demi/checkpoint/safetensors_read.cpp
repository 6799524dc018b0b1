#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "demi/checkpoint/safetensors.h"
#include "demi/checkpoint/safetensors_dtype.h"
#include "demi/checkpoint/safetensors_fault.h"
#include "demi/checkpoint/safetensors_header.h"
#include "demi/core/error.h"

namespace demi::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLongestHeader = 100'000'000;  // the reference implementation's limit

/// A file that is being read, and the place where something is wrong with it.
struct Reader {
  Fault fail;
  std::ifstream stream{};
  uint64_t size = 0;

  void read(void* to, uint64_t offset, uint64_t bytes) {
    stream.seekg(static_cast<std::streamoff>(offset));
    stream.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes));
    if (static_cast<uint64_t>(stream.gcount()) != bytes)
      fail("the file ends too early", offset, fmt::format("{} bytes", stream.gcount()),
           fmt::to_string(bytes));
  }
};

Reader open(const fs::path& path) {
  Reader reader{.fail = {path}};
  errno = 0;
  std::error_code code;
  if (fs::is_regular_file(path, code)) reader.stream.open(path, std::ios::binary);
  if (!reader.stream.is_open())
    throw DataError({.where = "checkpoint.load_safetensors",
                     .what = fmt::format("{} cannot be opened", path.string()),
                     .seen = code         ? code.message()
                             : errno != 0 ? std::strerror(errno)
                                          : "not a regular file",
                     .accepted = "a safetensors file"});
  reader.size = fs::file_size(path);
  return reader;
}

/// Elements x bytes each. Extents of 0 count as 1 in the bound: LibTorch's strides are their
/// product.
uint64_t byte_count(const Reader& reader, const TensorPlace& place) {
  const auto dtype = safetensors_dtype(place.dtype);
  if (!dtype)
    reader.fail(fmt::format("the dtype of {} is unknown", excerpt(place.name)), 8, place.dtype,
                "F64 F32 F16 BF16 F8_E4M3 F8_E5M2 C64 I64 I32 I16 I8 U64 U32 U16 U8 BOOL");
  uint64_t bytes = c10::elementSize(*dtype);
  bool empty = false;
  for (int64_t extent : place.shape) {
    empty |= extent == 0;
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(std::max<int64_t>(extent, 1)),
                               &bytes) ||
        bytes > INT64_MAX)
      reader.fail(fmt::format("the shape of {} is impossible", excerpt(place.name)), 8,
                  fmt::format("{}", fmt::join(place.shape, " x ")),
                  "extents whose product, of those above 0, fits 63 bits");
  }
  return empty ? 0 : bytes;
}

/// Every byte after the header belongs to exactly one tensor.
void check_places(const Reader& reader, const SafetensorsHeader& header) {
  uint64_t next = 0;
  for (const TensorPlace& place : header.tensors) {
    if (place.begin != next || place.end < place.begin)
      reader.fail(fmt::format("{} leaves a gap or overlaps", excerpt(place.name)),
                  header.data_start + std::min(next, place.begin),
                  fmt::format("[{}, {}]", place.begin, place.end),
                  fmt::format("to begin at {}", next));
    if (const uint64_t bytes = byte_count(reader, place); place.end - place.begin != bytes)
      reader.fail(fmt::format("the size of {} does not fit its shape", excerpt(place.name)),
                  header.data_start + place.begin, fmt::format("{} bytes", place.end - place.begin),
                  fmt::to_string(bytes));
    next = place.end;
  }
  if (next != reader.size - header.data_start)
    reader.fail("the file's size does not fit its header", reader.size,
                fmt::format("{} bytes of values", reader.size - header.data_start),
                fmt::to_string(next));
}

SafetensorsHeader read_header(Reader& reader) {
  std::array<unsigned char, 8> raw{};
  reader.read(raw.data(), 0, raw.size());
  uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i) length |= uint64_t{raw[i]} << (8 * i);
  if (length > kLongestHeader || length > reader.size - 8)
    reader.fail("the header's length is impossible", 0, fmt::to_string(length),
                fmt::format("at most {}", std::min(kLongestHeader, reader.size - 8)));
  std::string text(length, '\0');
  reader.read(text.data(), 8, length);
  SafetensorsHeader header = parse_header(reader.fail, text);
  header.data_start = 8 + length;
  check_places(reader, header);
  return header;
}

void check_bool(const Reader& reader, const TensorPlace& place, uint64_t start,
                const void* values) {
  const auto* bytes = static_cast<const unsigned char*>(values);
  for (uint64_t i = 0; i < place.end - place.begin; ++i)
    if (bytes[i] > 1)
      reader.fail(fmt::format("{} holds a truth value that is neither", excerpt(place.name)),
                  start + place.begin + i, fmt::to_string(bytes[i]), "0 or 1");
}

}  // namespace

SafetensorsHeader read_safetensors_header(const fs::path& file) {
  Reader reader = open(file);
  return read_header(reader);
}

Safetensors load_safetensors(const fs::path& file) {
  Reader reader = open(file);
  const SafetensorsHeader header = read_header(reader);
  Safetensors loaded{.tensors = {}, .metadata = header.metadata};
  for (const TensorPlace& place : header.tensors) {
    const c10::ScalarType dtype = *safetensors_dtype(place.dtype);
    at::Tensor tensor = at::empty(place.shape, at::TensorOptions().dtype(dtype));
    reader.read(tensor.mutable_data_ptr(), header.data_start + place.begin,
                place.end - place.begin);
    if (dtype == at::kBool) check_bool(reader, place, header.data_start, tensor.const_data_ptr());
    loaded.tensors.emplace(place.name, std::move(tensor));
  }
  return loaded;
}

}  // namespace demi::checkpoint
