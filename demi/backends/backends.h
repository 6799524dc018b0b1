#pragma once

#include <memory>
#include <optional>
#include <string>

#include "demi/core/export.h"

namespace demi {

/// Settings of LibTorch that decide how fast and how exactly it computes, for the whole process.
/// Each has the name that Python's torch.backends gives it. A setting that is not given stays
/// unchanged.
struct Backends {
  /// FP32 matrix products on CUDA may use TF32. LibTorch's default: false.
  std::optional<bool> cuda_matmul_allow_tf32 = std::nullopt;
  /// FP32 convolutions and recurrent layers on CUDA may use TF32. LibTorch's default: true.
  std::optional<bool> cudnn_allow_tf32 = std::nullopt;
  /// torch.backends.cuda.matmul: fp16 products may add partial sums in fp16. Default: true.
  std::optional<bool> allow_fp16_reduced_precision_reduction = std::nullopt;
  /// torch.backends.cuda.matmul: bf16 products may add partial sums in bf16. Default: true.
  std::optional<bool> allow_bf16_reduced_precision_reduction = std::nullopt;
  /// Convolutions and recurrent layers on CUDA may run in cuDNN. Default: true.
  std::optional<bool> cudnn_enabled = std::nullopt;
  /// cuDNN times its algorithms for each new shape of a convolution and uses the fastest. Default:
  /// false.
  std::optional<bool> cudnn_benchmark = std::nullopt;
  /// cuDNN uses only algorithms that give the same bits in every run. Default: false.
  std::optional<bool> cudnn_deterministic = std::nullopt;
  /// torch.use_deterministic_algorithms: LibTorch throws if an operation has no algorithm that
  /// gives the same bits in every run. Default: false.
  std::optional<bool> deterministic_algorithms = std::nullopt;
  /// oneDNN's precision of FP32 products, convolutions and recurrent layers on a CPU: "ieee"
  /// (FP32), "tf32", "bf16", or "none", which follows torch.backends.fp32_precision. Default:
  /// "none".
  std::optional<std::string> mkldnn_fp32_precision = std::nullopt;
  /// Threads of one operation on a CPU (torch.set_num_threads); 1 or more. Default: LibTorch's
  /// count of cores, or OMP_NUM_THREADS.
  std::optional<int> threads = std::nullopt;

  bool operator==(const Backends&) const = default;

  /// The present settings. Where LibTorch has one for each operation: cudnn_allow_tf32 is true only
  /// if both allow it, mkldnn_fp32_precision is that of products.
  DEMI_API static Backends current();

  /// Sets what is given. Throws UsageError as check, before anything is changed.
  DEMI_API void set() const;

  /// Throws UsageError: threads below 1, no such FP32 precision.
  DEMI_API void check() const;
};

/// The settings that are given hold until the end of the scope. The destructor puts them back as
/// they were, whether they had been made by LibTorch's older functions, its newer ones, or both. Of
/// several guards, in one thread or more, the last made holds; whichever ends last puts back what
/// was before the first.
class DEMI_API BackendsGuard {
 public:
  /// Throws as Backends::set.
  [[nodiscard]] explicit BackendsGuard(const Backends& backends);
  ~BackendsGuard();
  BackendsGuard(const BackendsGuard&) = delete;
  BackendsGuard& operator=(const BackendsGuard&) = delete;

 private:
  struct Before;
  std::unique_ptr<Before> before_;
};

/// Keeps memory that CPU tensors release in the process, for later tensors, until the process ends.
/// Otherwise glibc asks the kernel anew for each block above 32 MiB, whose pages the kernel then
/// clears one by one: up to a fifth of a training step over large layers, in FP32 and mixed
/// precision alike. Call it once, at the start of main().
///
/// Price: the process holds as much as it has used at once, and fragments in between. It applies to
/// every malloc of the process, and overwrites mallopt() settings. Returns false, without effect,
/// if malloc is not glibc's.
DEMI_API bool keep_memory();

}  // namespace demi
