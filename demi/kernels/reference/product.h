#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "demi/kernels/product.h"
#include "demi/kernels/reference/elements.h"

namespace demi::kernels {
namespace {

inline void multiply_matrices(const Product& p) {
  const auto sum_of = [&p](std::int64_t i, std::int64_t j) {
    float sum = 0;
    for (std::int64_t first = 0; first < p.k; first += kChain) {
      float chain = 0;
      for (std::int64_t l = first; l < std::min(first + kChain, p.k); ++l)
        chain = std::fma(load_element(p.a, p.storage, i * p.a_row + l * p.a_column),
                         load_element(p.b, p.storage, l * p.b_row + j * p.b_column), chain);
      sum = first == 0 ? chain : sum + chain;
    }
    return sum;
  };
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t j = 0; j < p.n; ++j) {
      float value = p.alpha * sum_of(i, j);
      if (p.addend) value += p.beta * p.addend[i * p.addend_row + j * p.addend_column];
      store_element(p.c, p.result, i * p.c_row + j, value);
    }
}

}  // namespace
}  // namespace demi::kernels
