#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "demi/checkpoint/safetensors.h"
#include "demi/core/source_dir_testing.h"

namespace demi::imported {

/// A file that tests/fixtures/imported/make.py wrote with Python.
inline std::filesystem::path fixture(std::string_view name) {
  return source_dir() / "tests/fixtures/imported" / name;
}

inline checkpoint::NamedTensors tensors_in(std::string_view name) {
  return checkpoint::load_safetensors(fixture(name)).tensors;
}

/// Compares with Python's numbers, from another machine: to 1e-5 of the largest value, or of 1 if
/// that is smaller, since sums in another order differ by the size of their terms.
inline void expect_near(const at::Tensor& seen, const at::Tensor& expected,
                        std::string_view what = "") {
  EXPECT_EQ(seen.sizes(), expected.sizes()) << what;
  if (seen.sizes() != expected.sizes()) return;
  const double largest = expected.numel() == 0 ? 0.0 : expected.abs().max().item<double>();
  EXPECT_LE((seen - expected).abs().max().item<double>(), 1e-5 * std::max(1.0, largest)) << what;
}

}  // namespace demi::imported
