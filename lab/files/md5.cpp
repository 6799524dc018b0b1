#include "lab/files/md5.h"

#include <md5.h>

#include <array>
#include <cstdint>
#include <fstream>
#include <vector>

#include "lab/files/damage.h"

namespace demi::files {
namespace {

// libmd's.
class Md5 {
 public:
  Md5() { MD5Init(&context_); }
  void add(std::string_view bytes) {
    MD5Update(&context_, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
  std::string digest() {
    std::array<char, MD5_DIGEST_STRING_LENGTH> text;
    return MD5End(&context_, text.data());
  }

 private:
  MD5_CTX context_;
};

}  // namespace

std::string md5(std::string_view bytes) {
  Md5 sum;
  sum.add(bytes);
  return sum.digest();
}

std::string md5_of_file(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!std::filesystem::is_regular_file(file) || !in)
    report_damage({.where = "files.md5_of_file",
                   .file = file,
                   .what = "cannot be opened",
                   .found = "no such file or no permission",
                   .expected = "a file that can be read"});
  Md5 sum;
  std::vector<char> buffer(1 << 18);
  while (in.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || in.gcount() > 0)
    sum.add({buffer.data(), static_cast<std::size_t>(in.gcount())});
  return sum.digest();
}

}  // namespace demi::files
