#pragma once

#include "demi/kernels/cpu/arrays.h"
#include "demi/kernels/lstm.h"
#include "demi/kernels/lstm_formulas.h"

// The LSTM step of CpuKernels with vectors. Included after the file that defines Vector; internal
// linkage.
namespace demi::kernels {
namespace {

void lstm_forward_step(const LstmForward& step) {
  const std::int64_t h = step.hidden;
  for (std::int64_t row = 0; row < step.rows; ++row) {
    const float* sums = step.sums + row * 4 * h;
    for_each_vector(h, [&](std::int64_t i, auto... some) {
      const auto sum = [&](int gate) {
        return load(sums + gate * h + i, some...) + load(step.bias + gate * h + i, some...);
      };
      Gates<Vector> gates{sum(0), sum(1), sum(2), sum(3)};
      const std::int64_t at = row * h + i;
      const Vector cell = lstm_cell(gates, load(step.cell_before + at, some...));
      store(step.cell + at, cell, some...);
      const Vector output = lstm_output(gates, cell);
      store_elements(step.output, step.storage, at, output, some...);
      if (!step.gates) return;
      const std::int64_t first = row * 4 * h + i;
      store_elements(step.gates, step.storage, first, gates.input, some...);
      store_elements(step.gates, step.storage, first + h, gates.forget, some...);
      store_elements(step.gates, step.storage, first + 2 * h, gates.candidate, some...);
      store_elements(step.gates, step.storage, first + 3 * h, gates.output, some...);
    });
  }
  if (step.widened) widen_array(step.widened, step.output, step.storage, step.rows * h);
}

template <Storage storage>
void lstm_backward_from(const LstmBackward& step) {
  const std::int64_t h = step.hidden;
  for (std::int64_t row = 0; row < step.rows; ++row) {
    for_each_vector(h, [&](std::int64_t i, auto... some) {
      const std::int64_t at = row * h + i, first = row * 4 * h + i;
      const auto gate = [&](int n) {
        return load_elements<storage>(step.gates, first + n * h, some...);
      };
      const Gates<Vector> gates{gate(0), gate(1), gate(2), gate(3)};
      Vector output_gradient = load(step.hidden_gradient + at, some...);
      if (step.output_gradient)
        output_gradient =
            output_gradient + load_elements<storage>(step.output_gradient, at, some...);
      Vector cell_gradient = load(step.cell_gradient + at, some...);
      const Gates<Vector> gradients =
          lstm_gradients(gates, load(step.cell_before + at, some...), load(step.cell + at, some...),
                         output_gradient, cell_gradient);
      store(step.cell_gradient + at, cell_gradient, some...);
      store_elements(step.sums_gradient, storage, first, gradients.input, some...);
      store_elements(step.sums_gradient, storage, first + h, gradients.forget, some...);
      store_elements(step.sums_gradient, storage, first + 2 * h, gradients.candidate, some...);
      store_elements(step.sums_gradient, storage, first + 3 * h, gradients.output, some...);
    });
  }
  if (step.widened) widen_from<storage>(step.widened, step.sums_gradient, step.rows * 4 * h);
}

void lstm_backward_step(const LstmBackward& step) {
  switch (step.storage) {
    case Storage::bf16:
      return lstm_backward_from<Storage::bf16>(step);
    case Storage::fp16:
      return lstm_backward_from<Storage::fp16>(step);
    default:
      return lstm_backward_from<Storage::fp32>(step);
  }
}

}  // namespace
}  // namespace demi::kernels
