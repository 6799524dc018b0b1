#pragma once

#include <cstdint>
#include <string>

#include "demi/core/export.h"
#include "demi/kernels/step_table.h"

namespace demi::kernels {

/// The passes on a CUDA device. Every function launches on `stream` (a cudaStream_t) of the current
/// device and returns at once: nothing synchronises, all that depends on data is decided on the
/// device, so a step can be captured in a graph. The table's pointers are device memory
/// (StepPlan::pack). A result other than null says what CUDA complained about. The bits are those
/// of the CPU paths (fp16 NaN payloads and pow's last bit in the bias corrections aside).
struct CudaKernels {
  using Pass = const char* (*)(const StepTable& table, void* stream);

  Pass measure;                // one launch
  Pass reduce;                 // one
  Pass decide;                 // one; may follow a reduce at any time before update
  Pass finish;                 // reduce and decide in one launch
  Pass update;                 // one
  Pass apply_trust;            // one for lamb, else none; the trust ratios are decided in it
  Pass step;                   // measure, finish, update, apply_trust: 3 launches, 4 for lamb
  std::int64_t (*launches)();  // so far, in this process
  const char* (*decline)();    // why the present device cannot run them, or null
  std::uint64_t layout;        // kStepLayout of the plugin's build
};

/// Changes when a struct of step_table.h does: a plugin of another build is not used.
inline constexpr std::uint64_t kStepLayout =
    ((((sizeof(TensorEntry) * 1024 + sizeof(Group)) * 1024 + sizeof(Coefficients)) * 1024 +
      sizeof(StepState)) *
         1024 +
     sizeof(StepTable)) *
        64 +
    1;

/// The kernels, or null where there are none; then `why` (if given) says so: not built, no driver,
/// no usable device. The plugin libdemi_cuda.so is opened at the first call, where an NVIDIA driver
/// is found; libdemi itself needs no CUDA. Thread-safe.
DEMI_API const CudaKernels* cuda_kernels(std::string* why = nullptr);

}  // namespace demi::kernels
