#pragma once

#include <cstdint>

#include "demi/kernels/step_table.h"

// The passes in plain C++, one element after the other: what every other path is compared with.
namespace demi::kernels::reference {

void measure(const StepTable& table, std::int64_t begin, std::int64_t end);
void update(const StepTable& table, std::int64_t begin, std::int64_t end);
void apply_trust(const StepTable& table, std::int64_t begin, std::int64_t end);

}  // namespace demi::kernels::reference
