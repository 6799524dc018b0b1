#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "demi/core/export.h"
#include "demi/kernels/batch_norm.h"
#include "demi/kernels/cross_entropy.h"
#include "demi/kernels/loss_scale.h"
#include "demi/kernels/quantize.h"
#include "demi/kernels/step_table.h"

namespace demi::kernels {

/// The passes on a CUDA device. Every function launches on `stream` (a cudaStream_t) of the current
/// device and returns at once: nothing synchronises, all that depends on data is decided on the
/// device, so a step can be captured in a graph. The table's pointers are device memory
/// (StepPlan::pack). A result other than null says what CUDA complained about. The bits are those
/// of the CPU paths (the bits of a NaN and pow's last bit in the bias corrections aside).
struct CudaKernels {
  using Pass = const char* (*)(const StepTable& table, void* stream);

  /// Copies host memory, which may be reused at once, to the device, in stream order. The bytes
  /// travel as arguments of kernels (up to 32,000 each), so nothing waits, and a captured step
  /// holds the bytes themselves. `to` and `bytes` are multiples of 4.
  using Upload = const char* (*)(void* to, const void* from, std::size_t bytes, void* stream);

  /// One launch of one thread, which moves a loss scale and counts skipped steps.
  using UpdateScale = const char* (*)(const LossScaleUpdate& update, void* stream);

  /// One launch: losses, and gradients in the logits' place.
  using RowsOfLogits = const char* (*)(const CrossEntropyRows& rows, void* stream);

  /// One launch: a pass over `pieces` (pieces_of()) of a batch normalisation with channels last.
  /// No GPU has run it, nor the two below: operators call them where DEMI_BATCH_NORM=cuda asks.
  using BatchNormPieces = const char* (*)(const BatchNorm& norm, BatchNormPass pass,
                                          std::int64_t pieces, void* stream);

  /// One launch: joins the sums of the statistics pass in an order of its own (batch_norm_join.h),
  /// and moves the running statistics; without sums the statistics are the running ones.
  using BatchNormStatistics = const char* (*)(const BatchNorm& norm, const ChannelStatistics& to,
                                              void* stream);
  /// One launch: the same of gradient_sums.
  using BatchNormGradients = const char* (*)(const BatchNorm& norm, const ChannelGradients& to,
                                             void* stream);

  /// Codes and scales of a matrix on the device, and numbers from them: one launch, and one more
  /// that writes `greatest` where a scale is of a row or of the tensor (quantize.h). No GPU has run
  /// it.
  using QuantizeMatrix = const char* (*)(const Quantization& q, void* stream);

  /// kStepLayout of the plugin's build. The first field, so that a plugin of any build has it here.
  std::uint64_t layout;

  Pass measure;      // one launch; sums included
  Pass decide;       // one
  Pass update;       // one
  Pass apply_trust;  // one with a trust ratio, else none; `update` has decided the trust ratios
  Pass step;         // all of them: 3 launches, 4 with a trust ratio
  UpdateScale update_scale;
  RowsOfLogits cross_entropy;
  BatchNormPieces batch_norm;
  BatchNormStatistics batch_norm_statistics;
  BatchNormGradients batch_norm_gradients;
  QuantizeMatrix quantize;
  QuantizeMatrix dequantize;
  Upload upload;
  bool (*capturing)(void* stream);  // whether a graph is being captured on the stream
  std::int64_t (*launches)();       // launches of passes so far, in this process
  std::int64_t (*uploads)();        // launches that carried tables
  const char* (*decline)();         // why the current device cannot run them, or null; cheap
};

/// Changes when a struct that a kernel takes, the number of rules or CudaKernels does: a plugin of
/// another build is not used.
inline constexpr std::uint64_t kStepLayout =
    ((((sizeof(TensorEntry) * 1024 + sizeof(Group)) * 1024 + sizeof(Coefficients)) * 1024 +
      sizeof(StepState)) *
         1024 +
     sizeof(StepTable)) *
        64 +
    static_cast<std::uint64_t>(UpdateRule::ema) * 8 +
    (sizeof(LossScaleUpdate) + sizeof(CrossEntropyRows) + sizeof(BatchNorm) +
     sizeof(ChannelStatistics) + sizeof(ChannelGradients) + sizeof(Quantization)) /
        8;

/// The kernels, or null; then `why` (if given) gives the reason: not built, no driver, or the
/// current CUDA device cannot run them. One GPU does not answer for another: make a tensor's device
/// the current one first. The first call opens the plugin libdemi_cuda.so if there is an NVIDIA
/// driver; libdemi itself needs no CUDA. Thread-safe.
DEMI_API const CudaKernels* cuda_kernels(std::string* why = nullptr);

/// As cuda_kernels(), for a plugin that was opened.
DEMI_API const CudaKernels* kernels_of(const CudaKernels& plugin, std::string* why = nullptr);

}  // namespace demi::kernels
