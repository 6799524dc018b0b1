#include "demi/autocast/slow_dtype.h"

#include <c10/util/Exception.h>

#include <atomic>

#include "demi/core/instruction_set.h"

namespace demi {

std::string why_slow(c10::DeviceType device, c10::ScalarType dtype) {
  if (device != c10::DeviceType::CPU) return "";
  const auto& set = instruction_set();
  if (dtype == c10::ScalarType::BFloat16 && !has_bf16_hardware())
    return set.avx512 ? "bf16 matrix products run at 0.45 to 0.63 times the speed of FP32 here: "
                        "the processor has AVX-512 "
                        "but no BF16 instructions"
                      : "bf16 matrix products run several times slower than FP32 here: the "
                        "processor has no BF16 instructions";
  if (dtype == c10::ScalarType::Half && !set.avx512_fp16)
    return "fp16 runs about 11 times slower than bf16 on a processor without FP16 instructions "
           "(measured on Zen 4)";
  return "";
}

void warn_where_slow(c10::DeviceType device, c10::ScalarType dtype) {
  if (device != c10::DeviceType::CPU) return;
  static std::atomic<bool> warned[2]{};
  auto& once = warned[dtype == c10::ScalarType::Half];
  if (once.load(std::memory_order_relaxed) || once.exchange(true)) return;
  const std::string why = why_slow(device, dtype);
  if (!why.empty())
    TORCH_WARN("[autocast.Autocast] ", why,
               "; train in FP32 on this machine, or go on to save memory");
}

}  // namespace demi
