#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

#include "demi/checkpoint/manifest.h"
#include "demi/checkpoint/safetensors.h"
#include "demi/core/crc32c.h"
#include "demi/core/error.h"

namespace demi::checkpoint {

/// A file in memory, whose path other functions can open.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view content) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (fd_ < 0 ||
        ::write(fd_, content.data(), content.size()) != static_cast<ssize_t>(content.size()))
      throw std::runtime_error("no file in memory");
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

/// Reads an input of a fuzzer. Its first byte says as what: 'f' a safetensors file, 'h' the header
/// of one, whose second byte is the number of bytes behind it, 'm' a manifest without its checksum.
/// It ends in a value or a DataError; anything else escapes.
inline void read_input(std::string_view input) {
  const char kind = input.empty() ? 'f' : input.front();
  input.remove_prefix(input.empty() ? 0 : 1);
  try {
    if (kind == 'm') {
      const std::string body(input);
      const Manifest manifest = parse_manifest("x", body + closing_of_manifest(body));
      parse_manifest("x", to_text(manifest));  // what was read can be written and read again
    } else if (kind == 'h') {
      const std::size_t values = input.empty() ? 0 : static_cast<unsigned char>(input.front());
      input.remove_prefix(input.empty() ? 0 : 1);
      std::string content(8, '\0');
      for (std::size_t i = 0; i < 8; ++i)
        content[i] = static_cast<char>(uint64_t{input.size()} >> (8 * i));
      load_safetensors(MemoryFile(content.append(input).append(std::string(values, '\0'))).path());
    } else {
      load_safetensors(MemoryFile(input).path());
    }
  } catch (const DataError&) {
  }
}

}  // namespace demi::checkpoint
