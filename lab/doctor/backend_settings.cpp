#include "lab/doctor/backend_settings.h"

#include <optional>

namespace demi::doctor {
namespace {

std::string text_of(const std::optional<bool>& value) {
  return value.value_or(false) ? "true" : "false";
}

}  // namespace

std::vector<BackendSetting> backend_settings(const Backends& now) {
  return {
      {.name = "cuda.matmul.allow_tf32",
       .option = "--cuda-matmul-allow-tf32",
       .value = text_of(now.cuda_matmul_allow_tf32),
       .by_default = "false",
       .gain = "FP32 products on tensor cores, from compute capability 8.0",
       .cost = "10 fraction bits in place of 23"},
      {.name = "cudnn.allow_tf32",
       .option = "--cudnn-allow-tf32",
       .value = text_of(now.cudnn_allow_tf32),
       .by_default = "true",
       .gain = "the same in convolutions and recurrent layers",
       .cost = "the same; a run of demi train has it off but in precision tf32"},
      {.name = "cuda.matmul.allow_fp16_reduced_precision_reduction",
       .option = "--allow-fp16-reduced-precision-reduction",
       .value = text_of(now.allow_fp16_reduced_precision_reduction),
       .by_default = "true",
       .gain = "faster fp16 products if a sum is split",
       .cost = "partial sums are rounded to fp16 and can overflow"},
      {.name = "cuda.matmul.allow_bf16_reduced_precision_reduction",
       .option = "--allow-bf16-reduced-precision-reduction",
       .value = text_of(now.allow_bf16_reduced_precision_reduction),
       .by_default = "true",
       .gain = "faster bf16 products if a sum is split",
       .cost = "partial sums keep 7 fraction bits"},
      {.name = "cudnn.enabled",
       .option = "--cudnn-enabled",
       .value = text_of(now.cudnn_enabled),
       .by_default = "true",
       .gain = "cuDNN's convolutions and recurrent layers",
       .cost = "none; without it LibTorch's own kernels run"},
      {.name = "cudnn.benchmark",
       .option = "--cudnn-benchmark",
       .value = text_of(now.cudnn_benchmark),
       .by_default = "false",
       .gain = "the fastest convolution of each shape",
       .cost = "trials for each new shape, their memory, other bits in another run"},
      {.name = "cudnn.deterministic",
       .option = "--deterministic",
       .value = text_of(now.cudnn_deterministic),
       .by_default = "false",
       .gain = "the same bits in every run",
       .cost = "cuDNN leaves some of its algorithms out"},
      {.name = "use_deterministic_algorithms",
       .option = "--deterministic",
       .value = text_of(now.deterministic_algorithms),
       .by_default = "false",
       .gain = "the same bits in every run, in all of LibTorch",
       .cost = "slower scatters; an error where an operation has no such algorithm"},
      {.name = "mkldnn.fp32_precision",
       .option = "",
       .value = now.mkldnn_fp32_precision.value_or("none"),
       .by_default = "none",
       .gain = "FP32 products in bf16 or tf32 on a CPU with instructions for them",
       .cost = "7 or 10 fraction bits in place of 23; a run of demi train has it at ieee"},
      {.name = "set_num_threads",
       .option = "--threads",
       .value = std::to_string(now.threads.value_or(0)),
       .by_default = "one for each core, or OMP_NUM_THREADS",
       .gain = "more cores for one operation",
       .cost = "beyond the cores that are free, threads wait for each other"},
  };
}

}  // namespace demi::doctor
