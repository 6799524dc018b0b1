#include "lab/recipes/machine.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/version.h>

#include "demi/autocast/slow_dtype.h"
#include "demi/core/bf16_products.h"
#include "demi/core/error.h"
#include "demi/core/instruction_set.h"

namespace demi::recipes {
namespace {

// The note on a dtype that the processor has no instructions for, outside a region.
std::string emulated(const std::string& instructions, const std::string& precision) {
  return " has no " + instructions + " instructions: LibTorch emulates such products; a region (" +
         precision + ") computes them in FP32; `demi bench matmul` measures both";
}

/// "AVX-512, AVX512_BF16", or "AVX2, to which ONEDNN_MAX_CPU_ISA limits it".
std::string usable_instructions() {
  const std::string here = describe(instruction_set()), used = describe(onednn_instruction_set());
  return used == here ? here : used + ", to which ONEDNN_MAX_CPU_ISA limits it";
}

}  // namespace

Machine machine(c10::Device device) {
  Machine result;
  result.device = device.str();
  result.processor = processor_name();
  if (device.is_cuda()) result.gpu = profile::gpu(device.has_index() ? device.index() : 0);
  result.device_name = device.is_cpu() ? result.processor
                       : result.gpu    ? result.gpu->name
                                       : device.str();
  result.instruction_set = usable_instructions();
  result.threads = at::get_num_threads();
  result.libtorch = TORCH_VERSION;
  result.demi = DEMI_VERSION;
  return result;
}

std::string describe(const Machine& m) {
  std::string text;
  if (m.gpu) {
    constexpr double kGibibyte = 1U << 30U;
    text = fmt::format("{} ({:.1f} GiB", m.gpu->name,
                       static_cast<double>(m.gpu->memory_bytes) / kGibibyte);
    if (!m.gpu->driver.empty()) text += ", driver " + m.gpu->driver;
    if (!m.gpu->cuda.empty()) text += ", CUDA " + m.gpu->cuda;
    text += "), ";
  } else if (m.device != "cpu") {
    text = m.device_name + ", ";
  }
  return text + fmt::format("{} ({}, {} thread{}), LibTorch {}, demi {}", m.processor,
                            m.instruction_set, m.threads, m.threads == 1 ? "" : "s", m.libtorch,
                            m.demi);
}

std::string title(const Machine& machine) {
  return machine.gpu ? machine.gpu->name : machine.device;
}

std::string slow_precision_warning(const Precision& precision, c10::Device device) {
  if (!device.is_cpu()) return "";
  const std::string machine = "this processor (" + usable_instructions() + ")";
  const c10::ScalarType computed = precision.shipped();
  if (precision.is_mixed()) {
    const std::string why = why_slow(c10::kCPU, computed);
    return why.empty() ? ""
                       : machine + ": " + why + "; `demi bench recipe` measures a step in both";
  }
  if (computed == c10::kBFloat16 && !has_bf16_hardware()) return machine + emulated("BF16", "bf16");
  if (computed == c10::kBFloat16 && bf16_products() == Bf16Products::fp32)
    return machine + ": LibTorch's bf16 products are slower than FP32's here (" +
           bf16_choice().because +
           "); a region (bf16) computes them in FP32; `demi bench matmul` measures both";
  if (computed == c10::kHalf && !onednn_instruction_set().avx512_fp16)
    return machine + emulated("FP16", "fp16");
  return "";
}

}  // namespace demi::recipes
