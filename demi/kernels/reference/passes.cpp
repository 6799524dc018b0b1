#include "demi/kernels/reference/passes.h"

#include <algorithm>
#include <bit>

#include "demi/kernels/formulas.h"
#include "demi/kernels/lanes.h"
#include "demi/kernels/reference/elements.h"

namespace demi::kernels::reference {
namespace {

struct Range {
  std::int64_t begin, end;  // elements of one tensor
};

Range elements_of(const TensorEntry& tensor, const Block& block) {
  const std::int64_t begin = block.index * kBlock;
  return {begin, std::min(begin + kBlock, tensor.length)};
}

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

Elements<float> load(const TensorEntry& tensor, const Coefficients& c, const StepState& state,
                     int moments, std::int64_t i) {
  Elements<float> e{};
  e.parameter = tensor.parameter[i];
  for (int m = 0; m < moments; ++m) e.moment[m] = tensor.moment[m][i];
  const float scaled = load_element(tensor.gradient, tensor.gradient_storage, i);
  e.gradient = true_gradient(scaled, state.inverse_scale, state.clip_factor, c);
  return e;
}

void store_parameter(const TensorEntry& tensor, std::int64_t i, float value) {
  tensor.parameter[i] = value;
  for (int k = 0; k < 2; ++k) {
    if (tensor.copy[k]) store_element(tensor.copy[k], tensor.copy_storage[k], i, value);
  }
}

template <Rule rule>
void update_block(const StepTable& table, const Block& block) {
  const TensorEntry& tensor = table.tensors[block.tensor];
  const Coefficients& c = table.coefficients[block.tensor];
  const int moments = moment_count(rule, c.flags);
  const Range range = elements_of(tensor, block);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    Elements<float> e = load(tensor, c, *table.state, moments, i);
    kernels::update<rule>(e, c);
    for (int m = 0; m < moments; ++m) tensor.moment[m][i] = e.moment[m];
    if constexpr (rule != Rule::lamb) store_parameter(tensor, i, e.parameter);
  }
}

float lamb_update_at(const TensorEntry& tensor, const Coefficients& c, std::int64_t i) {
  Elements<float> e{tensor.parameter[i], 0.0f, {tensor.moment[0][i], tensor.moment[1][i], 0.0f}};
  return lamb_update(e, c);
}

TrustPartial trust_of(const StepTable& table, const Block& block) {
  const TensorEntry& tensor = table.tensors[block.tensor];
  const Coefficients& c = table.coefficients[block.tensor];
  const Range range = elements_of(tensor, block);
  const std::int64_t n = range.end - range.begin;
  return {sum_of_squares(n, [&](std::int64_t i) { return tensor.parameter[range.begin + i]; }),
          sum_of_squares(
              n, [&](std::int64_t i) { return lamb_update_at(tensor, c, range.begin + i); })};
}

template <Rule rule>
void update_blocks(const StepTable& table, std::int64_t begin, std::int64_t end) {
  for (std::int64_t b = begin; b < end; ++b) {
    const Block& block = table.blocks[b];
    if (!table.tensors[block.tensor].gradient) continue;
    update_block<rule>(table, block);
    if constexpr (rule == Rule::lamb) table.trust[b] = trust_of(table, block);
  }
}

}  // namespace

void measure(const StepTable& table, std::int64_t begin, std::int64_t end) {
  for (std::int64_t b = begin; b < end; ++b) {
    const Block& block = table.blocks[b];
    const TensorEntry& tensor = table.tensors[block.tensor];
    table.partials[b] = {};
    if (!tensor.gradient) continue;
    const Range range = elements_of(tensor, block);
    const auto value = [&](std::int64_t i) {
      return load_element(tensor.gradient, tensor.gradient_storage, range.begin + i);
    };
    const std::int64_t n = range.end - range.begin;
    for (std::int64_t i = 0; i < n; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(value(i)) & 0x7FFFFFFFu;
      table.partials[b].greatest_bits = std::max(table.partials[b].greatest_bits, bits);
    }
    table.partials[b].sum_of_squares = sum_of_squares(n, value);
  }
}

void update(const StepTable& table, std::int64_t begin, std::int64_t end) {
  if (table.state->skipped != 0.0f) return;
  switch (table.rule) {
    case Rule::sgd:
      return update_blocks<Rule::sgd>(table, begin, end);
    case Rule::adam:
      return update_blocks<Rule::adam>(table, begin, end);
    case Rule::adamw:
      return update_blocks<Rule::adamw>(table, begin, end);
    case Rule::lamb:
      return update_blocks<Rule::lamb>(table, begin, end);
    case Rule::lion:
      return update_blocks<Rule::lion>(table, begin, end);
    case Rule::ema:
      return update_blocks<Rule::ema>(table, begin, end);
  }
}

void apply_trust(const StepTable& table, std::int64_t begin, std::int64_t end) {
  if (table.state->skipped != 0.0f || table.rule != Rule::lamb) return;
  for (std::int64_t b = begin; b < end; ++b) {
    const TensorEntry& tensor = table.tensors[table.blocks[b].tensor];
    if (!tensor.gradient) continue;
    const Coefficients& c = table.coefficients[table.blocks[b].tensor];
    const Range range = elements_of(tensor, table.blocks[b]);
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      Elements<float> e{
          tensor.parameter[i], 0.0f, {tensor.moment[0][i], tensor.moment[1][i], 0.0f}};
      lamb_apply(e, c);
      store_parameter(tensor, i, e.parameter);
    }
  }
}

}  // namespace demi::kernels::reference
