#include "demi/kernels/path_probe.h"

#include "demi/core/instruction_set.h"
#include "demi/kernels/cpu/tables.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/kernels/cuda_kernels.h"

namespace demi::kernels {
namespace {

Probe probe_simd(const CpuKernels* built, bool machine_has, std::string needs) {
  if (!built) return {false, "not built: the compiler or the processor family has no " + needs};
  if (!machine_has) return {false, "this processor has no " + needs};
  return {true, describe(instruction_set())};
}

Probe probe_cuda() {
  std::string why;
  const bool usable = cuda_kernels(&why) != nullptr;
  return {usable, why};
}

}  // namespace

Probe probe_path(Path path) {
  switch (path) {
    case Path::reference:
      return {true, "plain C++"};
    case Path::avx2:
      return probe_simd(avx2_kernels(), instruction_set().avx2, "AVX2 with F16C");
    case Path::avx512:
      return probe_simd(avx512_kernels(), instruction_set().avx512, "AVX-512 (F, BW, DQ, VL)");
    case Path::cuda:
      return probe_cuda();
    case Path::aten:
      return {true, "LibTorch's operators"};
  }
  return {false, "unknown path"};
}

const CpuKernels* cpu_kernels(Path path) {
  if (path == Path::reference) return reference_kernels();
  if (path == Path::avx2 && probe_path(path).usable) return avx2_kernels();
  if (path == Path::avx512 && probe_path(path).usable) return avx512_kernels();
  return nullptr;
}

const Bf16Product* bf16_product() {
  return onednn_instruction_set().avx512_bf16 && path_for(Device::cpu) == Path::avx512
             ? avx512_bf16_product()
             : nullptr;
}

}  // namespace demi::kernels
