#include "demi/kernels/lstm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "demi/core/number.h"
#include "demi/kernels/lstm_formulas.h"
#include "demi/kernels/testing/step_case.h"

namespace demi::kernels {
namespace {

using Floats = std::vector<float>;

float ulp(double x) {
  const float below = std::abs(static_cast<float>(x));
  return std::nextafter(below, std::numeric_limits<float>::infinity()) - below;
}

double greatest_error(double from, double to, float (*seen)(float), double (*exact)(double)) {
  double greatest = 0;
  for (int i = 0; i <= 400000; ++i) {
    const auto x = static_cast<float>(from + (to - from) * i / 400000);
    const double expected = exact(x);
    greatest = std::max(greatest, std::abs(seen(x) - expected) / ulp(expected));
  }
  return greatest;
}

TEST(LstmFormulas, AreWithinUnitsInTheLastPlace) {
  const auto e = [](float x) { return exponential(x); };
  const auto s = [](float x) { return sigmoid(x); };
  const auto t = [](float x) { return hyperbolic_tangent(x); };
  const auto exact_sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  EXPECT_LE(greatest_error(-87.3, 87.3, e, std::exp), 2);
  EXPECT_LE(greatest_error(-20, 20, s, exact_sigmoid), 4);
  EXPECT_LE(greatest_error(-80, -20, s, exact_sigmoid), 4);
  EXPECT_LE(greatest_error(-10, 10, t, std::tanh), 3);
  EXPECT_LE(greatest_error(-1e-3, 1e-3, t, std::tanh), 1);
}

TEST(LstmFormulas, AtTheEnds) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float x : {100.f, 3e38f, kInfinity}) {
    EXPECT_EQ(sigmoid(x), 1.f) << x;
    EXPECT_NEAR(sigmoid(-x), 0.f, 1e-37) << x;
    EXPECT_EQ(hyperbolic_tangent(x), 1.f) << x;
    EXPECT_EQ(hyperbolic_tangent(-x), -1.f) << x;
  }
  EXPECT_EQ(sigmoid(0.f), 0.5f);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(hyperbolic_tangent(0.f)), 0u);
  EXPECT_TRUE(std::isnan(sigmoid(std::nanf(""))));
  EXPECT_TRUE(std::isnan(hyperbolic_tangent(std::nanf(""))));
}

/// Everything that one step reads and writes.
struct Case {
  std::int64_t rows, hidden;
  Storage storage;
  Floats sums, bias, cell_before, cell, widened, hidden_gradient, cell_gradient, widened_gradient;
  std::vector<std::uint32_t> gates, output, output_gradient, sums_gradient;  // of any storage

  Case(std::int64_t n_rows, std::int64_t n_hidden, Storage stored)
      : rows(n_rows), hidden(n_hidden), storage(stored) {
    const auto n = static_cast<std::size_t>(rows * hidden);
    sums = filled(4 * n, 1);
    bias = filled(4 * static_cast<std::size_t>(hidden), 2);
    cell_before = filled(n, 3);
    hidden_gradient = filled(n, 4);
    cell_gradient = filled(n, 5);
    cell.resize(n);
    widened.resize(n);
    widened_gradient.resize(4 * n);
    gates.resize(4 * n);
    output.resize(n);
    sums_gradient.resize(4 * n);
    output_gradient.resize(n);
    const Floats gradient = filled(n, 6);
    const CpuKernels& reference = *cpu_kernels(Path::reference);
    if (storage == Storage::fp32)
      std::copy_n(gradient.data(), n, reinterpret_cast<float*>(output_gradient.data()));
    else
      reference.narrow(output_gradient.data(), storage, gradient.data(),
                       static_cast<std::int64_t>(n));
  }

  static Floats filled(std::size_t n, std::uint64_t seed) {
    Floats values(n);
    for (std::size_t i = 0; i < n; ++i)
      values[i] = testing::value_at(seed, static_cast<std::int64_t>(i), 2.0f, false);
    return values;
  }

  void forward(const CpuKernels& kernels) {
    kernels.lstm_forward({rows, hidden, storage, sums.data(), bias.data(), cell_before.data(),
                          cell.data(), gates.data(), output.data(), widened.data()});
  }
  void backward(const CpuKernels& kernels, bool output_too = true) {
    kernels.lstm_backward({rows, hidden, storage, output_too ? output_gradient.data() : nullptr,
                           hidden_gradient.data(), cell_gradient.data(), gates.data(),
                           cell_before.data(), cell.data(), sums_gradient.data(),
                           widened_gradient.data()});
  }

  friend bool operator==(const Case&, const Case&) = default;
};

TEST(Lstm, EveryPathGivesTheBitsOfTheReference) {
  for (const CpuKernels* kernels : testing::simd_paths()) {
    for (const Storage storage : {Storage::fp32, Storage::fp16, Storage::bf16}) {
      for (const std::int64_t hidden : {1, 7, 8, 16, 19, 33}) {
        Case expected(3, hidden, storage), seen = expected;
        expected.forward(*cpu_kernels(Path::reference));
        seen.forward(*kernels);
        EXPECT_EQ(expected, seen) << name_of(kernels->path) << " forward " << hidden;
        for (const bool output_too : {true, false}) {
          expected.backward(*cpu_kernels(Path::reference), output_too);
          seen.backward(*kernels, output_too);
          EXPECT_EQ(expected, seen) << name_of(kernels->path) << " backward " << hidden;
        }
      }
    }
  }
}

double exact_sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// The equations of lstm.h in FP64, for one cell: {h, c}.
std::array<double, 2> exact_step(const std::array<double, 4>& sums, double cell_before) {
  const double c =
      exact_sigmoid(sums[1]) * cell_before + exact_sigmoid(sums[0]) * std::tanh(sums[2]);
  return {exact_sigmoid(sums[3]) * std::tanh(c), c};
}

TEST(Lstm, ForwardFollowsTheEquations) {
  Case one(2, 5, Storage::fp32);
  one.forward(*cpu_kernels(Path::reference));
  for (std::int64_t row = 0; row < 2; ++row) {
    for (std::int64_t i = 0; i < 5; ++i) {
      std::array<double, 4> sums{};
      for (int n = 0; n < 4; ++n)
        sums[n] = double(one.sums[row * 20 + n * 5 + i]) + one.bias[n * 5 + i];
      const auto [h, c] = exact_step(sums, one.cell_before[row * 5 + i]);
      EXPECT_NEAR(one.widened[row * 5 + i], h, 1e-6);
      EXPECT_NEAR(one.cell[row * 5 + i], c, 1e-6);
    }
  }
}

TEST(Lstm, BackwardIsTheDerivativeOfTheEquations) {
  Case one(2, 5, Storage::fp32);
  const CpuKernels& kernels = *cpu_kernels(Path::reference);
  one.forward(kernels);
  const Floats of_cell = one.cell_gradient;
  one.backward(kernels);
  const auto* of_output = reinterpret_cast<const float*>(one.output_gradient.data());
  for (std::int64_t at = 0; at < 10; ++at) {
    const std::int64_t row = at / 5, i = at % 5;
    std::array<double, 4> sums{};
    for (int n = 0; n < 4; ++n)
      sums[n] = double(one.sums[row * 20 + n * 5 + i]) + one.bias[n * 5 + i];
    const double of_h = double(one.hidden_gradient[at]) + of_output[at];
    const auto loss = [&](const std::array<double, 4>& s, double cell_before) {
      const auto [h, c] = exact_step(s, cell_before);
      return of_h * h + of_cell[at] * c;
    };
    constexpr double kStep = 1e-6;
    for (int n = 0; n < 4; ++n) {
      auto up = sums, down = sums;
      up[n] += kStep;
      down[n] -= kStep;
      const double slope =
          (loss(up, one.cell_before[at]) - loss(down, one.cell_before[at])) / (2 * kStep);
      EXPECT_NEAR(one.widened_gradient[row * 20 + n * 5 + i], slope, 5e-6) << at << " gate " << n;
    }
    const double slope =
        (loss(sums, one.cell_before[at] + kStep) - loss(sums, one.cell_before[at] - kStep)) /
        (2 * kStep);
    EXPECT_NEAR(one.cell_gradient[at], slope, 5e-6) << at << " cell";
  }
}

TEST(Lstm, RoundsWhatItKeepsToTheStorage) {
  for (const CpuKernels* kernels : testing::simd_paths()) {
    Case low(2, 19, Storage::bf16), high(2, 19, Storage::fp32);
    low.forward(*kernels);
    high.forward(*kernels);
    for (std::size_t i = 0; i < high.widened.size(); ++i) {
      const auto rounded = fp32_from_bf16(bf16_from_fp32(high.widened[i]));
      EXPECT_EQ(low.widened[i], rounded);
      EXPECT_EQ(low.cell[i], high.cell[i]) << "c stays FP32";
    }
  }
}

}  // namespace
}  // namespace demi::kernels
