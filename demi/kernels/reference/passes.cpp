#include "demi/kernels/reference/passes.h"

#include <algorithm>
#include <bit>

#include "demi/kernels/blocks.h"
#include "demi/kernels/formulas.h"
#include "demi/kernels/lanes.h"
#include "demi/kernels/reference/elements.h"

namespace demi::kernels::reference {
namespace {

// The sum of squares of value(0) ... value(n - 1) in the order of lanes.h.
template <class Value>
double sum_of_squares(std::int64_t n, Value value) {
  double block[kLanes] = {};
  for (std::int64_t chunk = 0; chunk < n; chunk += kChunk) {
    for (int l = 0; l < kLanes; ++l) {
      double lane = 0;
      for (int g = 0; g < kRow; g += kLanes) {
        double group = 0;
        for (int r = 0; r < kChunk; r += kRow) {
          const std::int64_t i = chunk + r + g + l;
          const double x = i < n ? static_cast<double>(value(i)) : 0.0;
          group += x * x;
        }
        lane += group;
      }
      block[l] += lane;
    }
  }
  fold(block, kLanes);
  return block[0];
}

template <UpdateRule rule>
Elements<float> load_state(const Work& work, std::int64_t i) {
  Elements<float> e{};
  e.parameter = work.tensor.parameter[i];
  for (int m = 0; m < kArrays<rule>; ++m) {
    if (is_kept<rule>(work.arrays, m)) e.moment[m] = work.tensor.moment[m][i];
  }
  return e;
}

void store_parameter(const TensorEntry& tensor, std::int64_t i, float value) {
  tensor.parameter[i] = value;
  for (int k = 0; k < 2; ++k) {
    if (tensor.copy[k]) store_element(tensor.copy[k], tensor.copy_storage[k], i, value);
  }
}

template <UpdateRule rule>
void update_element(const Work& work, std::int64_t i) {
  Elements<float> e = load_state<rule>(work, i);
  const float scaled = load_element(work.tensor.gradient, work.tensor.gradient_storage, i);
  e.gradient = true_gradient(scaled, work.inverse_scale, work.clip_factor, work.c);
  kernels::update<rule>(e, work.c);
  for (int m = 0; m < kArrays<rule>; ++m) {
    if (is_kept<rule>(work.arrays, m)) work.tensor.moment[m][i] = e.moment[m];
  }
  if constexpr (!RuleOf<rule>::kTrust) store_parameter(work.tensor, i, e.parameter);
}

template <UpdateRule rule>
TrustPartial trust_of(const Work& work, Range range) {
  const auto parameter = [&](std::int64_t i) { return work.tensor.parameter[range.begin + i]; };
  const auto update = [&](std::int64_t i) {
    return RuleOf<rule>::direction(load_state<rule>(work, range.begin + i), work.c);
  };
  return {sum_of_squares(range.size(), parameter), sum_of_squares(range.size(), update)};
}

Partial sums_of(const TensorEntry& tensor, Range range) {
  const auto value = [&](std::int64_t i) {
    return load_element(tensor.gradient, tensor.gradient_storage, range.begin + i);
  };
  Partial sums{sum_of_squares(range.size(), value), 0, 0};
  for (std::int64_t i = 0; i < range.size(); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(value(i)) & 0x7FFFFFFFu;
    sums.greatest_bits = std::max(sums.greatest_bits, bits);
  }
  return sums;
}

}  // namespace

void measure(const StepTable& table, std::int64_t begin, std::int64_t end) {
  measure_blocks(table, begin, end, sums_of);
}

void update(const StepTable& table, std::int64_t begin, std::int64_t end) {
  if (table.state->skipped != 0.0f) return;
  with_rule(table.rule, [&]<UpdateRule rule>() {
    each_block(table, begin, end, [&](std::int64_t b, const TensorEntry&, Range range) {
      const Work work = work_of(table, b);
      for (std::int64_t i = range.begin; i < range.end; ++i) update_element<rule>(work, i);
      if constexpr (RuleOf<rule>::kTrust) table.trust[b] = trust_of<rule>(work, range);
    });
  });
}

void apply_trust(const StepTable& table, std::int64_t begin, std::int64_t end) {
  if (table.state->skipped != 0.0f) return;
  with_rule(table.rule, [&]<UpdateRule rule>() {
    if constexpr (RuleOf<rule>::kTrust) {
      each_block(table, begin, end, [&](std::int64_t b, const TensorEntry& tensor, Range range) {
        const Work work = work_of(table, b);
        for (std::int64_t i = range.begin; i < range.end; ++i) {
          Elements<float> e = load_state<rule>(work, i);
          kernels::apply_trust<rule>(e, work.c);
          store_parameter(tensor, i, e.parameter);
        }
      });
    }
  });
}

}  // namespace demi::kernels::reference
