#include <algorithm>
#include <bit>

#include "demi/kernels/cpu/tables.h"
#include "demi/kernels/formulas.h"
#include "demi/kernels/reference/elements.h"
#include "demi/kernels/reference/passes.h"

namespace demi::kernels {
namespace {

void narrow_array(void* to, Storage storage, const float* from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) store_element(to, storage, i, from[i]);
}

void widen_array(float* to, const void* from, Storage storage, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = load_element(from, storage, i);
}

void accumulate_array(float* sum, const void* from, Storage storage, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] = sum[i] + load_element(from, storage, i);
}

std::uint32_t unscale_array(float* values, float factor, std::int64_t n) {
  std::uint32_t greatest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    greatest = std::max(greatest, std::bit_cast<std::uint32_t>(values[i]) & 0x7FFFFFFFu);
    values[i] = values[i] * factor;
  }
  return greatest;
}

void clamp_array(float* values, float limit, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) values[i] = clamp(values[i], limit);
}

void lerp_array(float* start, const float* end, float weight, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) start[i] = lerp(start[i], end[i], weight);
}

constexpr CpuKernels kReference = {
    Path::reference, reference::measure, reference::update, reference::apply_trust,
    narrow_array,    widen_array,        accumulate_array,  unscale_array,
    clamp_array,     lerp_array};

}  // namespace

const CpuKernels* reference_kernels() { return &kReference; }

}  // namespace demi::kernels
