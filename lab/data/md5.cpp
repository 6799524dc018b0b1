#include "lab/data/md5.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <vector>

#include "lab/data/damage.h"

namespace demi::data {
namespace {

class Md5 {
 public:
  void add(std::string_view bytes) {
    total_ += bytes.size();
    while (!bytes.empty()) {
      const std::size_t taken = std::min(bytes.size(), block_.size() - filled_);
      std::memcpy(block_.data() + filled_, bytes.data(), taken);
      bytes.remove_prefix(taken);
      filled_ += taken;
      if (filled_ == block_.size()) transform();
    }
  }

  std::string digest() {
    const uint64_t bits = total_ * 8;
    add(std::string_view("\x80", 1));
    while (filled_ != 56) add(std::string_view("\0", 1));
    std::array<char, 8> length;
    for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(bits >> (8 * i));
    add({length.data(), length.size()});
    std::string text;
    for (uint32_t word : state_)
      for (int shift = 0; shift < 32; shift += 8)
        text += fmt::format("{:02x}", (word >> shift) & 0xFF);
    return text;
  }

 private:
  /// RFC 1321, 3.4; table T is floor(2^32 |sin(i + 1)|).
  static const std::array<uint32_t, 64>& table() {
    static const std::array<uint32_t, 64> table = [] {
      std::array<uint32_t, 64> t;
      for (std::size_t i = 0; i < 64; ++i)
        t[i] = static_cast<uint32_t>(std::floor(0x1p32 * std::fabs(std::sin(double(i + 1)))));
      return t;
    }();
    return table;
  }

  void transform() {
    static constexpr int kShift[4][4] = {
        {7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};
    std::array<uint32_t, 16> word;
    for (std::size_t i = 0; i < 16; ++i)
      word[i] = uint32_t{block_[4 * i]} | uint32_t{block_[4 * i + 1]} << 8 |
                uint32_t{block_[4 * i + 2]} << 16 | uint32_t{block_[4 * i + 3]} << 24;
    auto [a, b, c, d] = state_;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::size_t round = i / 16;
      const uint32_t mixed = round == 0   ? (b & c) | (~b & d)
                             : round == 1 ? (d & b) | (~d & c)
                             : round == 2 ? b ^ c ^ d
                                          : c ^ (b | ~d);
      const std::size_t k = round == 0   ? i
                            : round == 1 ? (5 * i + 1) % 16
                            : round == 2 ? (3 * i + 5) % 16
                                         : 7 * i % 16;
      const uint32_t next = b + std::rotl(a + mixed + table()[i] + word[k], kShift[round][i % 4]);
      a = d;
      d = c;
      c = b;
      b = next;
    }
    state_ = {state_[0] + a, state_[1] + b, state_[2] + c, state_[3] + d};
    filled_ = 0;
  }

  std::array<uint32_t, 4> state_{0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};
  std::array<unsigned char, 64> block_{};
  std::size_t filled_ = 0;
  uint64_t total_ = 0;
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
    report_damage({.where = "data.md5_of_file",
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

}  // namespace demi::data
