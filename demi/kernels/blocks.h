#pragma once

#include <cstdint>

#include "demi/kernels/decision.h"
#include "demi/kernels/formulas.h"
#include "demi/kernels/step_table.h"

// How the CPU passes, plain or vectorised, walk through a table. Internal linkage, as formulas.h.
namespace demi::kernels {
namespace {

struct Range {
  std::int64_t begin, end;  // elements of one tensor
  std::int64_t size() const { return end - begin; }
};

inline Range elements_of(const TensorEntry& tensor, const Block& block) {
  const std::int64_t begin = block.index * kBlock;
  return {begin, begin + kBlock < tensor.length ? begin + kBlock : tensor.length};
}

/// act(b, tensor, range) for the blocks b of [begin, end) whose tensor has a gradient.
template <class Act>
inline void each_block(const StepTable& table, std::int64_t begin, std::int64_t end, Act act) {
  for (std::int64_t b = begin; b < end; ++b) {
    const TensorEntry& tensor = table.tensors[table.blocks[b].tensor];
    if (tensor.gradient) act(b, tensor, elements_of(tensor, table.blocks[b]));
  }
}

/// Pass 1: sums(tensor, range) of every block, in the units of the scaled gradients.
template <class Sums>
inline void measure_blocks(const StepTable& table, std::int64_t begin, std::int64_t end,
                           Sums sums) {
  const float inverse_scale = inverse_scale_of(table.inputs);
  for (std::int64_t b = begin; b < end; ++b) table.partials[b] = {};
  each_block(table, begin, end, [&](std::int64_t b, const TensorEntry& tensor, Range range) {
    const Partial partial = sums(tensor, range);
    table.partials[b] = tensor.unscaled ? with_scale(partial, inverse_scale) : partial;
  });
}

/// The numbers of the tables for a loop over the elements of a tensor: a copy, so that the compiler
/// knows that no store changes them. work_of() is always inlined: a call would know the address.
struct Work {
  TensorEntry tensor;
  Coefficients c;
  float inverse_scale;
  float clip_factor;
  std::uint32_t arrays;
  void* direction;  // the tensor's; null: the table has none
  Storage direction_storage;
};

inline __attribute__((always_inline)) Work work_of(const StepTable& table, std::int64_t b) {
  const TensorEntry& tensor = table.tensors[table.blocks[b].tensor];
  const Coefficients& c = table.coefficients[table.blocks[b].tensor];
  return {tensor,
          c,
          tensor.unscaled ? 1.0f : table.state->inverse_scale,
          table.state->clip_factor,
          c.arrays,
          direction_of(table, table.blocks[b].tensor),
          table.direction_storage};
}

}  // namespace
}  // namespace demi::kernels
