#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "demi/checkpoint/safetensors.h"
#include "demi/checkpoint/safetensors_dtype.h"
#include "demi/core/error.h"

namespace demi::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kLongestHeader = 100'000'000;  // the reference implementation's limit

/// A file that is being read, and the place where something is wrong with it.
struct Reader {
  const fs::path& path;
  std::ifstream stream{};
  uint64_t size = 0;

  [[noreturn]] void fail(std::string_view what, uint64_t offset, std::string_view found,
                         std::string_view expected) const {
    throw DataError(
        {.where = "checkpoint.load_safetensors",
         .what = fmt::format("{}, offset {}: {}", path.string(), offset, what),
         .seen = found,
         .accepted = expected,
         .advice =
             "the file is damaged or of another kind; use another copy or an older checkpoint"});
  }
  void read(void* to, uint64_t offset, uint64_t bytes) {
    stream.seekg(static_cast<std::streamoff>(offset));
    stream.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes));
    if (static_cast<uint64_t>(stream.gcount()) != bytes)
      fail("the file ends too early", offset, fmt::format("{} bytes", stream.gcount()),
           fmt::to_string(bytes));
  }
};

Reader open(const fs::path& path) {
  Reader reader{.path = path};
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

/// The parsed header. JSON as such allows a key twice; here it would hide a tensor.
json parse(const Reader& reader, const std::string& text) {
  std::vector<std::set<std::string>> keys;
  const auto unique = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      reader.fail("a name stands twice in the header", 8, parsed.get<std::string>(),
                  "each name once");
    return true;
  };
  try {
    json parsed = json::parse(text, unique);
    if (!parsed.is_object())
      reader.fail("the header is not a JSON object", 8, parsed.type_name(), "an object");
    return parsed;
  } catch (const json::parse_error& error) {
    reader.fail("the header is not JSON", 7 + error.byte, error.what(), "a JSON object in UTF-8");
  }
}

Metadata metadata_of(const Reader& reader, const json& value) {
  try {
    return value.get<Metadata>();
  } catch (const json::exception& error) {
    reader.fail("__metadata__ is not made of strings", 8, error.what(), "an object of strings");
  }
}

/// Elements x bytes each, or a complaint where that overflows.
uint64_t byte_count(const Reader& reader, const TensorPlace& place) {
  const auto dtype = safetensors_dtype(place.dtype);
  if (!dtype)
    reader.fail(fmt::format("the dtype of {} is unknown", place.name), 8, place.dtype,
                "F64 F32 F16 BF16 F8_E4M3 F8_E5M2 C64 I64 I32 I16 I8 U64 U32 U16 U8 BOOL");
  uint64_t bytes = c10::elementSize(*dtype);
  for (int64_t extent : place.shape)
    if (extent < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes) ||
        bytes > INT64_MAX)
      reader.fail(fmt::format("the shape of {} is impossible", place.name), 8,
                  fmt::format("{}", fmt::join(place.shape, " x ")),
                  "extents whose product fits 63 bits");
  return bytes;
}

TensorPlace place_of(const Reader& reader, const std::string& name, const json& value) {
  TensorPlace place{.name = name};
  try {
    place.dtype = value.at("dtype").get<std::string>();
    for (const json& extent : value.at("shape")) {
      if (!extent.is_number_unsigned() || extent.get<uint64_t>() > INT64_MAX)
        reader.fail(fmt::format("the shape of {} is impossible", name), 8, extent.dump(),
                    "non-negative whole numbers");
      place.shape.push_back(extent.get<int64_t>());
    }
    const json& offsets = value.at("data_offsets");
    if (offsets.size() != 2 || !offsets.at(0).is_number_unsigned() ||
        !offsets.at(1).is_number_unsigned())
      reader.fail(fmt::format("data_offsets of {} are impossible", name), 8, offsets.dump(),
                  "[begin, end]");
    place.begin = offsets.at(0).get<uint64_t>();
    place.end = offsets.at(1).get<uint64_t>();
  } catch (const json::exception& error) {
    reader.fail(fmt::format("the entry of {} is not one of a tensor", name), 8, error.what(),
                "dtype, shape and data_offsets");
  }
  return place;
}

/// Every byte after the header belongs to exactly one tensor.
void check_places(const Reader& reader, const SafetensorsHeader& header) {
  uint64_t next = 0;
  for (const TensorPlace& place : header.tensors) {
    if (place.begin != next || place.end < place.begin)
      reader.fail(fmt::format("{} leaves a gap or overlaps", place.name),
                  header.data_start + std::min(next, place.begin),
                  fmt::format("[{}, {}]", place.begin, place.end),
                  fmt::format("to begin at {}", next));
    if (const uint64_t bytes = byte_count(reader, place); place.end - place.begin != bytes)
      reader.fail(fmt::format("the size of {} does not fit its shape", place.name),
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
  const json parsed = parse(reader, text);
  SafetensorsHeader header{.data_start = 8 + length};
  for (const auto& [name, value] : parsed.items()) {
    if (name == "__metadata__") {
      header.metadata = metadata_of(reader, value);
    } else {
      header.tensors.push_back(place_of(reader, name, value));
    }
  }
  std::ranges::stable_sort(header.tensors, {},
                           [](const TensorPlace& p) { return std::pair(p.begin, p.end); });
  check_places(reader, header);
  return header;
}

void check_bool(const Reader& reader, const TensorPlace& place, uint64_t start,
                const void* values) {
  const auto* bytes = static_cast<const unsigned char*>(values);
  for (uint64_t i = 0; i < place.end - place.begin; ++i)
    if (bytes[i] > 1)
      reader.fail(fmt::format("{} holds a truth value that is neither", place.name),
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
