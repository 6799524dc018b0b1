#include "demi/checkpoint/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace demi::checkpoint {
namespace {

using nlohmann::json;

constexpr uint64_t kHeaderOffset = 8;
constexpr std::string_view kMetadata = "__metadata__";

/// Receives the header's values one by one. The format has four levels: the header, the entry of a
/// tensor (or the metadata), its fields, and the numbers in an array. Anything deeper is refused.
class HeaderHandler {
 public:
  HeaderHandler(const Fault& fault, SafetensorsHeader& header) : fault_(fault), header_(header) {}

  bool null() {
    const bool no_metadata = level_ == Level::header && in_metadata_;  // as Python reads it
    return no_metadata || value("null");
  }
  bool boolean(bool truth) { return value(truth ? "true" : "false"); }
  bool number_float(double, const std::string& text) { return value(text); }
  bool number_integer(int64_t number) { return value(fmt::to_string(number)); }  // below 0
  bool binary(json::binary_t&) { return value("binary"); }
  bool number_unsigned(uint64_t number) {
    if (level_ != Level::array) return value(fmt::to_string(number));
    if (field_ == Field::shape) add_extent(number);
    if (field_ == Field::offsets) add_offset(number);
    return true;
  }
  bool string(std::string& text) {
    if (level_ == Level::metadata) {
      header_.metadata.emplace(std::move(metadata_name_), std::move(text));
      if (header_.metadata.size() > kMostMetadata)
        refuse("there are too many metadata entries", fmt::to_string(header_.metadata.size()),
               fmt::format("at most {}", kMostMetadata));
      return true;
    }
    if (level_ == Level::entry && field_ == Field::dtype) {
      entry().dtype = std::move(text);
      return true;
    }
    return value(text);
  }

  bool start_object(std::size_t) {
    if (level_ == Level::outside) {
      level_ = Level::header;
    } else if (level_ == Level::header) {
      seen_ = {};
      level_ = in_metadata_ ? Level::metadata : Level::entry;
    } else {
      return value("an object", /*nested=*/true);
    }
    return true;
  }
  bool key(std::string& name) {
    if (level_ == Level::header) return begin_entry(name);
    if (level_ == Level::metadata) return begin_metadata(name);
    field_ = name == "dtype"          ? Field::dtype
             : name == "shape"        ? Field::shape
             : name == "data_offsets" ? Field::offsets
                                      : Field::unknown;
    if (field_ == Field::unknown) return true;  // ignored, as the reference implementation does
    bool& seen = seen_[static_cast<std::size_t>(field_)];
    if (seen) twice(name);
    seen = true;
    return true;
  }
  bool end_object() {
    if (level_ == Level::entry) end_entry();
    level_ = level_ == Level::header ? Level::outside : Level::header;
    return true;
  }

  bool start_array(std::size_t) {
    if (level_ != Level::entry || field_ == Field::dtype) return value("an array", /*nested=*/true);
    extents_.clear();
    offsets_ = 0;
    level_ = Level::array;
    return true;
  }
  bool end_array() {
    if (field_ == Field::shape) entry().shape.assign(extents_.begin(), extents_.end());
    if (field_ == Field::offsets && offsets_ != 2)
      wrong_offsets(fmt::format("{} numbers", offsets_));
    level_ = Level::entry;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception& error) {
    fault_("the header is not JSON", kHeaderOffset - 1 + position, error.what(),
           "a JSON object in UTF-8");
  }

 private:
  enum class Level { outside, header, metadata, entry, array };
  enum class Field { dtype, shape, offsets, unknown };

  TensorPlace& entry() { return header_.tensors.back(); }
  std::string name() { return excerpt(entry().name); }

  [[noreturn]] void refuse(const std::string& what, std::string_view found,
                           std::string_view expected) const {
    fault_(what, kHeaderOffset, found, expected);
  }
  [[noreturn]] void twice(std::string_view key) const {
    refuse("a name occurs twice in the header", key, "each name once");
  }
  [[noreturn]] void no_entry(std::string_view found) {
    refuse(fmt::format("the entry of {} is not one of a tensor", name()), found,
           "dtype, shape and data_offsets");
  }
  [[noreturn]] void wrong_shape(std::string_view found) {
    refuse(fmt::format("the shape of {} is impossible", name()), found,
           fmt::format("[...] of at most {} non-negative whole numbers", kMostDimensions));
  }
  [[noreturn]] void wrong_offsets(std::string_view found) {
    refuse(fmt::format("data_offsets of {} are impossible", name()), found, "[begin, end]");
  }

  /// A value of a kind that does not fit its place; only unknown fields may hold it.
  bool value(std::string_view found, bool nested = false) {
    if (level_ == Level::outside) refuse("the header is not a JSON object", found, "an object");
    if (level_ == Level::metadata || (level_ == Level::header && in_metadata_))
      refuse("__metadata__ is not made of strings", found, "an object of strings");
    if (level_ == Level::header) no_entry(found);
    if (field_ == Field::shape) wrong_shape(found);
    if (field_ == Field::offsets) wrong_offsets(found);
    if (field_ == Field::dtype) no_entry(found);
    if (nested) no_entry(fmt::format("{} in an unknown field", found));
    return true;
  }

  bool begin_entry(const std::string& name) {
    in_metadata_ = name == kMetadata;
    if (in_metadata_) {
      if (std::exchange(has_metadata_, true)) twice(kMetadata);
    } else {
      header_.tensors.emplace_back().name = std::string(name);  // as long as it needs to be
    }
    return true;
  }
  bool begin_metadata(std::string& name) {
    if (header_.metadata.contains(name)) twice(name);
    metadata_name_ = std::move(name);
    return true;
  }
  void end_entry() {
    for (const bool seen : seen_)
      if (!seen) no_entry("one of them is missing");
  }
  void add_extent(uint64_t extent) {
    if (extent > INT64_MAX) wrong_shape(fmt::to_string(extent));
    if (extents_.size() == kMostDimensions) wrong_shape("more dimensions");
    extents_.push_back(static_cast<int64_t>(extent));
  }
  void add_offset(uint64_t offset) {
    if (offsets_ == 2) wrong_offsets("a third number");
    (offsets_++ == 0 ? entry().begin : entry().end) = offset;
  }

  const Fault& fault_;
  SafetensorsHeader& header_;
  Level level_ = Level::outside;
  Field field_ = Field::unknown;  // of the entry, whose value comes next
  bool in_metadata_ = false;      // the member of the header that comes next
  bool has_metadata_ = false;
  std::array<bool, 3> seen_{};  // dtype, shape and offsets of the entry
  std::string metadata_name_;
  std::vector<int64_t> extents_;  // kept apart, so that each shape takes what it needs
  int offsets_ = 0;
};

/// The most tensors that the header may name: objects outside of strings.
std::size_t count_entries(std::string_view text) {
  constexpr std::size_t kLeastBytes =
      sizeof R"("":{"dtype":"","shape":[],"data_offsets":[0,0]},)" - 1;
  std::size_t objects = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') in_string = !in_string;
    if (in_string && text[i] == '\\') ++i;
    objects += !in_string && text[i] == '{';
  }
  return std::min(objects, text.size() / kLeastBytes + 1);
}

/// JSON as such allows a key twice; here it would hide a tensor.
void require_unique(const Fault& fault, std::vector<TensorPlace>& tensors) {
  std::ranges::sort(tensors, {}, &TensorPlace::name);
  const auto same = std::ranges::adjacent_find(tensors, {}, &TensorPlace::name);
  if (same != tensors.end())
    fault("a name occurs twice in the header", kHeaderOffset, same->name, "each name once");
}

// The dtypes in the order in which the reference implementation lays tensors out: wide ones first,
// so that each is aligned.
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

SafetensorsHeader parse_header(const Fault& fault, std::string_view text) {
  // nlohmann's parser passes over a byte order mark, and takes a NUL for the end of the text.
  if (text.starts_with("\xEF\xBB\xBF"))
    fault("the header is not JSON", kHeaderOffset, "a byte order mark", "a JSON object in UTF-8");
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos)
    fault("the header is not JSON", kHeaderOffset + nul, "a NUL", "a JSON object in UTF-8");
  SafetensorsHeader header{};
  header.tensors.reserve(count_entries(text));
  HeaderHandler handler(fault, header);
  json::sax_parse(text, &handler);
  require_unique(fault, header.tensors);
  std::ranges::sort(header.tensors, {}, [](const TensorPlace& place) {
    return std::tie(place.begin, place.end, place.name);
  });
  return header;
}

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
