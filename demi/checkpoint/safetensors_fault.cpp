#include "demi/checkpoint/safetensors_fault.h"

#include <fmt/format.h>

#include "demi/core/error.h"

namespace demi::checkpoint {

namespace {

/// Control characters as \x1b, so that a file's bytes neither steer a terminal nor end the message.
std::string without_control_characters(std::string_view text) {
  std::string plain;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F)
      plain += fmt::format("\\x{:02x}", byte);
    else
      plain += c;
  }
  return plain;
}

}  // namespace

std::string excerpt(std::string_view text) {
  constexpr std::size_t kMost = 200;
  if (text.size() <= kMost) return without_control_characters(text);
  std::size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80)
    --end;  // not inside of a UTF-8 character
  return fmt::format("{}... ({} bytes)", without_control_characters(text.substr(0, end)),
                     text.size());
}

void Fault::operator()(std::string_view what, uint64_t offset, std::string_view found,
                       std::string_view expected) const {
  throw DataError(
      {.where = where,
       .what = fmt::format("{}, offset {}: {}", path.string(), offset, what),
       .seen = excerpt(found),
       .accepted = expected,
       .advice =
           "the file is damaged or of another kind; use another copy or an older checkpoint"});
}

}  // namespace demi::checkpoint
