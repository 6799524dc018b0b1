#pragma once

#include <cstdint>

#include "demi/core/export.h"
#include "demi/kernels/step_table.h"

namespace demi::kernels {

/// Bytes of tensor memory that each pass reads and writes (tables and partial results, some bytes a
/// block, not counted).
struct Traffic {
  std::int64_t measure = 0;
  std::int64_t update = 0;
  std::int64_t apply_trust = 0;  // pass 3
  std::int64_t elements = 0;     // of tensors that have a gradient

  std::int64_t total() const { return measure + update + apply_trust; }
  double bytes_per_element() const {
    return elements ? static_cast<double>(total()) / static_cast<double>(elements) : 0;
  }
};

/// Counted from the tables: 14 / 22 / 30 bytes an element for sgd / sgd with momentum / adamw with
/// 16-bit gradients and one 16-bit copy, 42 for lamb. The table lies in host memory.
DEMI_API Traffic traffic_of(const StepTable& table);

}  // namespace demi::kernels
