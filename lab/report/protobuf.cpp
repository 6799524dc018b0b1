#include "lab/report/protobuf.h"

#include <bit>
#include <cstring>

namespace demi::report {
namespace {

// Wire types of protobuf's encoding page.
constexpr int kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5;

static_assert(std::endian::native == std::endian::little,
              "numbers are written as they lie in memory");

template <typename Number>
void append_raw(std::string& out, Number value) {
  char raw[sizeof value];
  std::memcpy(raw, &value, sizeof value);
  out.append(raw, sizeof value);
}

}  // namespace

void Message::raw_varint(std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) encoded_ += static_cast<char>(value | 0x80);
  encoded_ += static_cast<char>(value);
}

void Message::key(int field, int wire_type) {
  raw_varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(wire_type));
}

Message& Message::varint(int field, std::int64_t value) {
  key(field, kVarint);
  raw_varint(static_cast<std::uint64_t>(value));
  return *this;
}

Message& Message::fixed32(int field, float value) {
  key(field, kFixed32);
  append_raw(encoded_, value);
  return *this;
}

Message& Message::fixed64(int field, double value) {
  key(field, kFixed64);
  append_raw(encoded_, value);
  return *this;
}

Message& Message::bytes(int field, std::string_view value) {
  key(field, kLengthDelimited);
  raw_varint(value.size());
  encoded_ += value;
  return *this;
}

Message& Message::packed(int field, std::span<const double> values) {
  key(field, kLengthDelimited);
  raw_varint(values.size_bytes());
  for (const double value : values) append_raw(encoded_, value);
  return *this;
}

}  // namespace demi::report
