#include "demi/quantization/hadamard.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "demi/core/crc32.h"
#include "demi/core/error.h"
#include "demi/core/source_dir_testing.h"
#include "demi/quantization/hadamard_rounds.h"
#include "demi/quantization/quantization.h"

namespace demi::quantization {
namespace {

using ::testing::HasSubstr;

/// H by its definition, in FP64.
at::Tensor matrix_of_hadamard() {
  const std::string signs = "+++-+------+-+--";
  at::Tensor h = at::empty({16, 16}, at::kDouble);
  for (unsigned i = 0; i < 16; ++i)
    for (unsigned j = 0; j < 16; ++j)
      h[i][j] = (signs[i] == '+' ? 0.25 : -0.25) * (std::popcount(i & j) % 2 == 0 ? 1 : -1);
  return h;
}

/// The same as hadamard() of rows, in FP64.
at::Tensor by_definition(const at::Tensor& x) {
  return x.to(at::kDouble).reshape({-1, 16}).matmul(matrix_of_hadamard()).view(x.sizes());
}

/// Its line of tests/fixtures/quantized/peers.txt.
std::string transformer_engines(const std::string& direction) {
  std::ifstream file(source_dir() / "tests/fixtures/quantized/peers.txt");
  const std::string start = "hadamard transformer_engine " + direction + ' ';
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(start)) return line.substr(start.size());
  return "no line";
}

std::uint32_t mixed_word_of(std::uint32_t word) {
  word = (word ^ (word >> 16)) * 0x85EBCA6Bu;
  word = (word ^ (word >> 13)) * 0xC2B2AE35u;
  return word ^ (word >> 16);
}

// Sums of whole numbers are exact, in whatever order they are made.
TEST(Hadamard, IsTransformerEngines) {
  const at::Tensor x = at::empty({512, 1024});
  for (std::uint32_t i = 0; i < x.numel(); ++i)
    x.mutable_data_ptr<float>()[i] =
        static_cast<float>(mixed_word_of(i + 0x2545F491u) % 4095) - 2047.0f;
  for (const bool down : {false, true}) {
    const at::Tensor seen = hadamard(x, down);
    char crc[9];
    std::snprintf(crc, sizeof crc, "%08x", crc32(seen.const_data_ptr(), seen.nbytes()));
    EXPECT_EQ(crc, transformer_engines(down ? "down" : "along"));
  }
}

TEST(Hadamard, IsItsMatrixWithinTheRoundingsOfFiveSums) {
  torch::manual_seed(1);
  const at::Tensor x = at::randn({48, 272});
  const at::Tensor size = by_definition(x).abs().max();
  const double most = 4 * 0x1p-24 * 16 / 4 * x.abs().max().item<double>();  // four sums in a row
  EXPECT_LE((hadamard(x, false) - by_definition(x)).abs().max().item<double>(), most);
  const at::Tensor down = by_definition(x.t().contiguous()).t();
  EXPECT_LE((hadamard(x, true) - down).abs().max().item<double>(), most);
  EXPECT_GT(size.item<double>(), 1);
}

// H H^T = 1: a product over the transformed dimension is the same.
TEST(Hadamard, ProductsStayTheSame) {
  torch::manual_seed(2);
  const at::Tensor x = at::randn({37, 20}), dy = at::randn({37, 24});
  const at::Tensor seen = hadamard(dy, true).t().matmul(hadamard(x, true));
  EXPECT_TRUE(at::allclose(seen, dy.t().matmul(x), 1e-4, 1e-4));
  const at::Tensor w = at::randn({9, 20});
  EXPECT_TRUE(
      at::allclose(hadamard(x, false).matmul(hadamard(w, false).t()), x.matmul(w.t()), 1e-4, 1e-4));
}

TEST(Hadamard, AnyNumberOfThreadsAndTheOpsOfADeviceGiveTheSameBits) {
  torch::manual_seed(3);
  for (const std::vector<std::int64_t>& sizes :
       std::vector<std::vector<std::int64_t>>{{16, 16}, {32, 48}, {1024, 1040}, {4096, 16}}) {
    const at::Tensor x = at::randn(sizes) * 1e3;
    const int before = at::get_num_threads();
    for (const bool down : {false, true}) {
      at::set_num_threads(1);
      const at::Tensor one = hadamard(x, down);
      at::set_num_threads(4);
      EXPECT_TRUE(at::equal(one, hadamard(x, down)));
      EXPECT_TRUE(at::equal(one, hadamard_by_ops(x, down)));
    }
    at::set_num_threads(before);
  }
}

TEST(Hadamard, DownIsAlongOfTheTransposed) {
  const at::Tensor x = at::randn({64, 45});
  EXPECT_TRUE(at::equal(hadamard(x, true), hadamard(x.t(), false).t()));  // not contiguous
}

TEST(Hadamard, ALastGroupIsFilledUpWithZeros) {
  torch::manual_seed(4);
  for (const std::int64_t length : {1, 15, 17, 250}) {
    const std::int64_t whole = (length + 15) / 16 * 16;
    const at::Tensor x = at::randn({whole, 3, 7});
    x.narrow(0, length, whole - length).zero_();
    const at::Tensor seen = hadamard(x.narrow(0, 0, length).transpose(0, 2), false);
    EXPECT_EQ(seen.sizes(), (std::vector<std::int64_t>{21, whole}));
    EXPECT_TRUE(at::equal(seen, hadamard(x.transpose(0, 2), false)));
    const at::Tensor rows = x.reshape({whole, 21});
    const at::Tensor down = hadamard(rows.narrow(0, 0, length), true);
    EXPECT_EQ(down.sizes(), (std::vector<std::int64_t>{whole, 21}));
    EXPECT_TRUE(at::equal(down, hadamard(rows, true)));
  }
}

TEST(Hadamard, SixteenBitsAreRoundedOnce) {
  torch::manual_seed(5);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf})
    for (const bool down : {false, true}) {
      const at::Tensor x = at::randn({80, 96}).to(dtype), seen = hadamard(x, down);
      EXPECT_EQ(seen.scalar_type(), dtype);
      EXPECT_TRUE(at::equal(seen, hadamard(x.to(at::kFloat), down).to(dtype)));
    }
}

// An overflow must not vanish.
TEST(Hadamard, InfAndNanReachTheirGroupAndNoOther) {
  for (const double special : {HUGE_VAL, -HUGE_VAL, std::nan("")})
    for (const bool down : {false, true}) {
      at::Tensor x = at::ones({48, 48});
      x[20][40] = special;
      const at::Tensor finite = hadamard(x, down).isfinite();
      const at::Tensor expected = at::ones({48, 48}, at::kBool);
      (down ? expected.narrow(0, 16, 16).select(1, 40) : expected.select(0, 20).narrow(0, 32, 16))
          .zero_();
      EXPECT_TRUE(at::equal(finite, expected));
    }
}

TEST(Hadamard, EmptyTensorsAndLeaves) {
  EXPECT_EQ(hadamard(at::zeros({0, 5}), true).sizes(), (std::vector<std::int64_t>{0, 5}));
  EXPECT_EQ(hadamard(at::zeros({5, 0}), false).sizes(), (std::vector<std::int64_t>{5, 0}));
  const at::Tensor x = at::randn({4, 32}).requires_grad_();
  EXPECT_FALSE(hadamard(x, false).requires_grad());
  EXPECT_EQ(hadamard(at::ones({3}), false).sizes(), (std::vector<std::int64_t>{1, 16}));
}

TEST(Hadamard, WhatCannotBeTransformedIsSaid) {
  const auto complaint = [](const at::Tensor& x) -> std::string {
    try {
      hadamard(x, false);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(complaint(at::zeros({16}, at::kDouble)),
              HasSubstr("[quantization.hadamard] the dtype is neither FP32 nor"));
  EXPECT_THAT(complaint(at::zeros({})), HasSubstr("without dimensions"));
}

}  // namespace
}  // namespace demi::quantization
