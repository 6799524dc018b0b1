#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace demi::report {

/// A protobuf message, field by field, in protobuf's wire format
/// (protobuf.dev/programming-guides/encoding): no schema, no library. Five message types need less
/// code than a dependency, and libprotobuf would clash with the one inside LibTorch.
class Message {
 public:
  Message& varint(int field, std::int64_t value);  // int32, int64, bool, enum
  Message& fixed32(int field, float value);
  Message& fixed64(int field, double value);
  Message& bytes(int field, std::string_view value);  // string, bytes
  Message& message(int field, const Message& value) { return bytes(field, value.encoded_); }
  Message& packed(int field, std::span<const double> values);

  const std::string& encoded() const { return encoded_; }

 private:
  void key(int field, int wire_type);
  void raw_varint(std::uint64_t value);
  std::string encoded_;
};

}  // namespace demi::report
