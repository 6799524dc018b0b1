// Codes and scales against ml_dtypes, gfloat, torchao and TransformerEngine, whose results
// tests/fixtures/quantized/make.py has written.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "demi/core/crc32.h"
#include "demi/core/source_dir_testing.h"
#include "demi/kernels/codecs/narrow.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/kernels/testing/kernels_here.h"

namespace demi::kernels {
namespace {

const std::map<std::string, NarrowFormat> kFormatNames = {
    {"e4m3", NarrowFormat::e4m3}, {"e5m2", NarrowFormat::e5m2}, {"e2m1", NarrowFormat::e2m1}};
const std::map<std::string, Scaling> kScalingNames = {
    {"tensor", Scaling::tensor},
    {"tensor_power_of_two", Scaling::tensor_power_of_two},
    {"row", Scaling::row},
    {"row_power_of_two", Scaling::row_power_of_two},
    {"mx_ceil", Scaling::mx_ceil},
    {"mx_floor", Scaling::mx_floor},
    {"nv", Scaling::nv},
    {"nv_torchao", Scaling::nv_torchao},
    {"nv_square", Scaling::nv_square},
    {"block_128", Scaling::block_128},
    {"block_128_power_of_two", Scaling::block_128_power_of_two},
    {"square_128", Scaling::square_128},
    {"square_128_power_of_two", Scaling::square_128_power_of_two}};

// The numbers of make.py.

std::uint32_t mixed_word(std::uint32_t word) {
  word = (word ^ (word >> 16)) * 0x85EBCA6Bu;
  word = (word ^ (word >> 13)) * 0xC2B2AE35u;
  return word ^ (word >> 16);
}

std::vector<float> peers_numbers(const std::string& kind, std::int64_t n) {
  const std::uint32_t spread = kind == "near" ? 16 : 90;
  std::vector<float> all(static_cast<std::size_t>(n));
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    const std::uint32_t word = mixed_word(i + 0x9E3779B9u), group = mixed_word(i / 48 + 77);
    const std::uint32_t exponent = 121 + (word >> 23 & 7) + group % (2 * spread + 1) - spread;
    const bool is_zero = (group >> 8) % 16 == 0 || word % 31 == 0;
    all[i] = std::bit_cast<float>(is_zero ? 0 : (word & 0x807FFFFFu) | exponent << 23);
  }
  return all;
}

std::vector<float> peers_elements() {
  std::vector<float> all(1 << 20);
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    std::uint32_t word = mixed_word(i + 0x51ED270Bu);
    if ((word & 0x7F800000u) == 0x7F800000u) word = 0x3F800000u;
    if (i < all.size() / 2) word = (word & 0x807FFFFFu) | (109 + (word >> 23) % 36) << 23;
    all[i] = std::bit_cast<float>(word);
  }
  return all;
}

template <class T>
std::string crc_of(const std::vector<T>& all) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", crc32(all.data(), all.size() * sizeof(T)));
  return text;
}

std::vector<std::vector<std::string>> peers_lines() {
  std::ifstream file(source_dir() / "tests/fixtures/quantized/peers.txt");
  std::vector<std::vector<std::string>> lines;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    lines.emplace_back();
    for (std::string word; words >> word;) lines.back().push_back(word);
  }
  return lines;
}

TEST(QuantizePeers, ElementsAreThoseOfMlDtypesAndGfloat) {
  const std::vector<float> numbers = peers_elements();
  int seen = 0;
  for (const auto& line : peers_lines()) {
    if (line[0] != "elements") continue;
    ++seen;
    with_format(kFormatNames.at(line[1]), [&](auto format) {
      using F = decltype(format);
      std::vector<float> decoded(1 << kBitsOf<F>);
      for (std::uint32_t code = 0; code < decoded.size(); ++code) {
        const float x = number_of<F>(code);
        decoded[code] = std::isnan(x) ? std::bit_cast<float>(0x7FC00000u) : x;
      }
      std::vector<std::uint8_t> codes;
      codes.reserve(numbers.size());
      for (const float x : numbers)
        codes.push_back(
            static_cast<std::uint8_t>(code_of<F, ToNearest>(std::bit_cast<std::uint32_t>(x), 0u)));
      EXPECT_EQ(crc_of(decoded), line[2]) << line[1];
      EXPECT_EQ(crc_of(codes), line[3]) << line[1];
    });
  }
  EXPECT_EQ(seen, 3);
}

TEST(QuantizePeers, CodesScalesAndNumbersAreThoseOfTorchaoAndTransformerEngine) {
  const CpuKernels& kernels = *testing::kernels_here().back();  // all paths have the same bits
  int seen = 0;
  for (const auto& line : peers_lines()) {
    if (line[0] == "elements" || line[0] == "hadamard") continue;
    ++seen;
    const std::int64_t rows = std::stoll(line[5]), columns = std::stoll(line[6]);
    const std::vector<float> from = peers_numbers(line[4], rows * columns);
    Quantization q{kFormatNames.at(line[1]), kScalingNames.at(line[2]), line[3] == "down", rows,
                   columns};
    std::vector<float> to(from.size());
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * code_bytes(q.format, columns)));
    std::vector<std::uint8_t> scales(
        static_cast<std::size_t>(scales_of(q) * (has_fp32_scales(q.scaling) ? 4 : 1)));
    std::vector<std::uint32_t> greatest(static_cast<std::size_t>(greatest_of_columns_words(q) + 1));
    float tensor_scale = 0;
    q.from = from.data();
    q.to = to.data();
    q.storage = Storage::fp32;
    q.codes = codes.data();
    q.scales = scales.data();
    q.tensor_scale = &tensor_scale;
    q.greatest = greatest.data();
    if (needs_greatest_of_columns(q))
      kernels.raise_greatest_of_columns(q, 0, rows, greatest.data());
    else
      greatest[0] = kernels.greatest_magnitude(from.data(), Storage::fp32, rows * columns);
    kernels.quantize(q, 0, pieces_of(q));
    kernels.dequantize(q, 0, pieces_of(q));
    const std::string name =
        line[0] + ' ' + line[1] + ' ' + line[2] + ' ' + line[3] + ' ' + line[4];
    EXPECT_EQ(crc_of(codes), line[7]) << name;
    EXPECT_EQ(crc_of(scales), line[8]) << name;
    EXPECT_EQ(crc_of(to), line[10]) << name;
    if (line[9] != "-") {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(tensor_scale), std::stoul(line[9], nullptr, 16))
          << name;
    }
  }
  EXPECT_EQ(seen, 70);
}

}  // namespace
}  // namespace demi::kernels
