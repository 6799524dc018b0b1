#include "demi/kernels/reference/passes.h"

#include <algorithm>
#include <bit>

#include "demi/kernels/blocks.h"
#include "demi/kernels/codecs/elements.h"
#include "demi/kernels/codecs/random_halves.h"
#include "demi/kernels/codecs/weights.h"
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

float parameter_at(const TensorEntry& tensor, std::int64_t i) {
  return tensor.coded_parameter.parameter ? decoded(tensor.coded_parameter, i)
                                          : tensor.parameter[i];
}

template <UpdateRule rule>
Elements<float> load_state(const Work& work, std::int64_t i) {
  Elements<float> e{};
  e.parameter = parameter_at(work.tensor, i);
  for (int m = 0; m < kArrays<rule>; ++m) {
    const Coded& array = work.tensor.coded_moment[m];
    if (is_kept<rule>(work.arrays, m))
      e.moment[m] = array.values ? decoded(array, i) : work.tensor.moment[m][i];
  }
  return e;
}

void store_parameter(const StepTable& table, const TensorEntry& tensor, std::int64_t i,
                     float value) {
  if (tensor.coded_parameter.parameter)
    encode(tensor.coded_parameter, i, value,
           random_half(stream_of(rounding_key(table, tensor, kWeightArray)), i));
  else
    tensor.parameter[i] = value;
  for (int k = 0; k < 2; ++k) {
    if (tensor.copy[k]) store_element(tensor.copy[k], tensor.copy_storage[k], i, value);
  }
}

/// New values of one state of a group of elements.
using GroupValues = float[kCodeGroup];

template <UpdateRule rule>
void update_element(const StepTable& table, const Work& work, std::int64_t i, int k,
                    GroupValues (&moments)[3]) {
  Elements<float> e = load_state<rule>(work, i);
  if (reads_gradient<rule>(work.c.flags)) {
    const float scaled = load_element(work.tensor.gradient, work.tensor.gradient_storage, i);
    e.gradient = true_gradient(scaled, work.inverse_scale, work.clip_factor, work.c);
  }
  if constexpr (RuleOf<rule>::kDirection == Direction::read)
    e.direction = load_element(work.direction, work.direction_storage, i);
  kernels::update<rule>(e, work.c);
  for (int m = 0; m < kArrays<rule>; ++m) moments[m][k] = e.moment[m];
  if constexpr (RuleOf<rule>::kDirection == Direction::written)
    store_element(work.direction, work.direction_storage, i, e.direction);
  if constexpr (kMovesParameter<rule>) store_parameter(table, work.tensor, i, e.parameter);
}

void store_coded(const Coded& array, RandomStream stream, Range group, const GroupValues& values) {
  std::uint32_t greatest = 0;
  for (int k = 0; k < group.size(); ++k)
    greatest = std::max(greatest, magnitude_bits(array.codec, values[k]));
  if (has_scales(array.codec)) scale_at(array, group.begin) = scale_for(array.codec, greatest);
  for (int k = 0; k < group.size(); ++k)
    encode(array, group.begin + k, values[k], random_half(stream, group.begin + k));
}

template <UpdateRule rule>
void update_group(const StepTable& table, const Work& work, Range group) {
  GroupValues moments[3];
  for (int k = 0; k < group.size(); ++k)
    update_element<rule>(table, work, group.begin + k, k, moments);
  for (int m = 0; m < kArrays<rule>; ++m) {
    if (!is_kept<rule>(work.arrays, m)) continue;
    const Coded& array = work.tensor.coded_moment[m];
    if (array.values)
      store_coded(array, stream_of(rounding_key(table, work.tensor, m)), group, moments[m]);
    else
      std::copy_n(moments[m], group.size(), work.tensor.moment[m] + group.begin);
  }
}

template <UpdateRule rule>
TrustPartial trust_of(const Work& work, Range range) {
  const auto parameter = [&](std::int64_t i) { return parameter_at(work.tensor, range.begin + i); };
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
  with_rule(table.range.rule, [&]<UpdateRule rule>() {
    each_block(table, begin, end, [&](std::int64_t b, const TensorEntry&, Range range) {
      const Work work = work_of(table, b);
      for (std::int64_t at = range.begin; at < range.end; at += kCodeGroup)
        update_group<rule>(table, work, {at, std::min(at + kCodeGroup, range.end)});
      if constexpr (RuleOf<rule>::kTrust) table.trust[b] = trust_of<rule>(work, range);
    });
  });
}

void apply_trust(const StepTable& table, std::int64_t begin, std::int64_t end) {
  if (table.state->skipped != 0.0f) return;
  with_rule(table.range.rule, [&]<UpdateRule rule>() {
    if constexpr (RuleOf<rule>::kTrust) {
      each_block(table, begin, end, [&](std::int64_t b, const TensorEntry& tensor, Range range) {
        const Work work = work_of(table, b);
        for (std::int64_t i = range.begin; i < range.end; ++i) {
          Elements<float> e = load_state<rule>(work, i);
          kernels::apply_trust<rule>(e, work.c);
          store_parameter(table, tensor, i, e.parameter);
        }
      });
    }
  });
}

}  // namespace demi::kernels::reference
