#pragma once

#include <string>
#include <string_view>

#include "demi/checkpoint/header_testing.h"
#include "demi/checkpoint/manifest.h"
#include "demi/checkpoint/safetensors.h"
#include "demi/core/fuzz_target_testing.h"
#include "demi/core/memory_file_testing.h"

namespace demi::checkpoint {

/// A header, without the 8 bytes of its length; the first byte is the number of bytes behind it.
inline void fuzz_header(std::string_view bytes) {
  const std::size_t values = bytes.empty() ? 0 : static_cast<unsigned char>(bytes.front());
  bytes.remove_prefix(bytes.empty() ? 0 : 1);
  std::string content = header_length(bytes.size()).append(bytes);
  load_safetensors(MemoryFile(content.append(std::string(values, '\0'))).path());
}

/// A manifest without its checksum. What was read can be written and read again.
inline void fuzz_manifest(std::string_view bytes) {
  const std::string body(bytes);
  const Manifest manifest = parse_manifest("x", body + closing_of_manifest(body));
  parse_manifest("x", to_text(manifest));
}

inline constexpr FuzzTarget kFuzzTargets[] = {
    {"safetensors", [](std::string_view bytes) { load_safetensors(MemoryFile(bytes).path()); }},
    {"safetensors_header", fuzz_header},
    {"manifest", fuzz_manifest}};

}  // namespace demi::checkpoint
