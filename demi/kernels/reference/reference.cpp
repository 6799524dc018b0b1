#include <algorithm>
#include <bit>

#include "demi/kernels/cpu/tables.h"
#include "demi/kernels/formulas.h"
#include "demi/kernels/gelu_formulas.h"
#include "demi/kernels/lstm_formulas.h"
#include "demi/kernels/reference/add_norm.h"
#include "demi/kernels/reference/batch_norm.h"
#include "demi/kernels/reference/elements.h"
#include "demi/kernels/reference/passes.h"
#include "demi/kernels/reference/product.h"

namespace demi::kernels {
namespace {

void narrow_array(void* to, Storage storage, const float* from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) store_element(to, storage, i, from[i]);
}

void widen_array(float* to, const void* from, Storage storage, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = load_element(from, storage, i);
}

std::uint32_t unscale_array(float* values, float factor, std::int64_t n) {
  std::uint32_t greatest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    greatest = std::max(greatest, std::bit_cast<std::uint32_t>(values[i]) & 0x7FFFFFFFu);
    values[i] = values[i] * factor;
  }
  return greatest;
}

void lerp_array(float* start, const float* end, float weight, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) start[i] = lerp(start[i], end[i], weight);
}

void count_exponents_of(Storage storage, const void* data, std::int64_t begin, std::int64_t end,
                        ExponentCounts& to) {
  double lanes[kExponentLanes] = {};
  for (std::int64_t i = begin; i < end; ++i) {
    const float x = load_element(data, storage, i);
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) {
      ++to.nans;
    } else if (magnitude == 0x7F800000u) {
      ++to.infinities;
    } else if (magnitude == 0) {
      ++to.zeros;
    } else {
      const auto field = static_cast<int>(magnitude >> 23);
      const int exponent = field != 0 ? field - 127 : std::bit_width(magnitude) - 1 - 149;
      ++to.of_exponent[exponent - kLowestExponent];
      lanes[(i - begin) % kExponentLanes] += double{x} * double{x};
    }
  }
  for (const double lane : lanes) to.sum_of_squares += lane;
}

void lstm_forward_step(const LstmForward& step) {
  const std::int64_t h = step.hidden;
  for (std::int64_t row = 0; row < step.rows; ++row) {
    for (std::int64_t i = 0; i < h; ++i) {
      const std::int64_t at = row * h + i, first = row * 4 * h + i;
      const auto sum = [&](int gate) {
        return step.sums[first + gate * h] + step.bias[gate * h + i];
      };
      Gates<float> gates{sum(0), sum(1), sum(2), sum(3)};
      step.cell[at] = lstm_cell(gates, step.cell_before[at]);
      store_element(step.output, step.storage, at, lstm_output(gates, step.cell[at]));
      if (step.widened) step.widened[at] = load_element(step.output, step.storage, at);
      if (!step.gates) continue;
      store_element(step.gates, step.storage, first, gates.input);
      store_element(step.gates, step.storage, first + h, gates.forget);
      store_element(step.gates, step.storage, first + 2 * h, gates.candidate);
      store_element(step.gates, step.storage, first + 3 * h, gates.output);
    }
  }
}

void lstm_backward_step(const LstmBackward& step) {
  const std::int64_t h = step.hidden;
  for (std::int64_t row = 0; row < step.rows; ++row) {
    for (std::int64_t i = 0; i < h; ++i) {
      const std::int64_t at = row * h + i, first = row * 4 * h + i;
      const auto gate = [&](int n) {
        return load_element(step.gates, step.storage, first + n * h);
      };
      const Gates<float> gates{gate(0), gate(1), gate(2), gate(3)};
      float output_gradient = step.hidden_gradient[at];
      if (step.output_gradient)
        output_gradient += load_element(step.output_gradient, step.storage, at);
      const Gates<float> gradients = lstm_gradients(gates, step.cell_before[at], step.cell[at],
                                                    output_gradient, step.cell_gradient[at]);
      const float of_gates[] = {gradients.input, gradients.forget, gradients.candidate,
                                gradients.output};
      for (int n = 0; n < 4; ++n) {
        store_element(step.sums_gradient, step.storage, first + n * h, of_gates[n]);
        if (step.widened)
          step.widened[first + n * h] =
              load_element(step.sums_gradient, step.storage, first + n * h);
      }
    }
  }
}

void gelu_array(void* to, Storage storage, const void* from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i)
    store_element(to, storage, i, gelu_of(load_element(from, storage, i)));
}

void gelu_gradient_array(void* to, Storage storage, const void* gradient, const void* from,
                         std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i)
    store_element(to, storage, i,
                  load_element(gradient, storage, i) * gelu_slope(load_element(from, storage, i)));
}

}  // namespace
}  // namespace demi::kernels

// Behind the array kernels, which it calls.
#include "demi/kernels/reference/quantize.h"

namespace demi::kernels {
namespace {

constexpr CpuKernels kReference = {
    .path = Path::reference,
    .measure = reference::measure,
    .update = reference::update,
    .apply_trust = reference::apply_trust,
    .narrow = narrow_array,
    .widen = widen_array,
    .unscale = unscale_array,
    .lerp = lerp_array,
    .count_exponents = count_exponents_of,
    .lstm_forward = lstm_forward_step,
    .lstm_backward = lstm_backward_step,
    .gelu = gelu_array,
    .gelu_gradient = gelu_gradient_array,
    .multiply = multiply_matrices,
    .quantize = quantize_pieces_by<std::uint32_t>,
    .dequantize = dequantize_pieces_by<std::uint32_t>,
    .greatest_magnitude = greatest_magnitude_by<std::uint32_t>,
    .raise_greatest_of_columns = raise_greatest_of_columns_by<std::uint32_t>,
    .batch_norm = batch_norm_pieces<float>,
    .add_norm = add_norm_pieces<float>};

}  // namespace

const CpuKernels* reference_kernels() { return &kReference; }

}  // namespace demi::kernels
