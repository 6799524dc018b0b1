#pragma once

#include <cstdint>

#include "demi/core/export.h"
#include "demi/kernels/add_norm.h"
#include "demi/kernels/batch_norm.h"
#include "demi/kernels/exponent_counts.h"
#include "demi/kernels/lstm.h"
#include "demi/kernels/path.h"
#include "demi/kernels/product.h"
#include "demi/kernels/quantize.h"
#include "demi/kernels/step_table.h"

namespace demi::kernels {

/// The passes and array kernels of one CPU path. All paths give the same bits (NaN payloads aside).
/// Functions are pure in their range: calls on disjoint ranges may run at the same time, and how
/// the work is split changes no bit. The caller splits it (at::parallel_for); a block is 16,384
/// elements.
struct CpuKernels {
  Path path;

  // Passes over blocks [begin, end) of a table in host memory. After a skip, update and apply_trust
  // write nothing.
  void (*measure)(const StepTable& table, std::int64_t begin, std::int64_t end);
  void (*update)(const StepTable& table, std::int64_t begin, std::int64_t end);
  void (*apply_trust)(const StepTable& table, std::int64_t begin, std::int64_t end);

  // Arrays of n elements, n >= 0. 16-bit arrays are fp16 or bf16 as `storage` says. Rounding: to
  // nearest, ties to even, subnormals kept. `to` may be `from` if the element sizes are equal;
  // otherwise arrays do not overlap.

  /// to = from, rounded.
  void (*narrow)(void* to, Storage storage, const float* from, std::int64_t n);
  /// to = from, exactly.
  void (*widen)(float* to, const void* from, Storage storage, std::int64_t n);
  /// values *= factor. Returns the FP32 bits of the greatest magnitude before (0x7F800000 and more:
  /// an Inf or NaN).
  std::uint32_t (*unscale)(float* values, float factor, std::int64_t n);
  /// start += weight (end - start).
  void (*lerp)(float* start, const float* end, float weight, std::int64_t n);

  /// As count_exponents (exponent_counts.h).
  void (*count_exponents)(Storage storage, const void* data, std::int64_t begin, std::int64_t end,
                          ExponentCounts& to);

  // A time step of an LSTM (lstm.h). Rows are independent of each other.
  void (*lstm_forward)(const LstmForward& step);
  void (*lstm_backward)(const LstmBackward& step);

  // GELU by tanh, in FP32 arithmetic, of arrays whose elements are all of `storage`. `to` may be an
  // operand.

  /// to = gelu(from).
  void (*gelu)(void* to, Storage storage, const void* from, std::int64_t n);
  /// to = gradient times gelu's slope at from.
  void (*gelu_gradient)(void* to, Storage storage, const void* gradient, const void* from,
                        std::int64_t n);

  /// A product of 16-bit matrices by FP32's fused multiply-add (product.h). One thread.
  void (*multiply)(const Product& product);

  // Codes of 8 and 4 bits (quantize.h). Pieces [begin, end) of pieces_of(q).

  /// Writes codes and scales; the first piece those of the whole tensor.
  void (*quantize)(const Quantization& q, std::int64_t begin, std::int64_t end);
  /// to = the numbers that the codes stand for, rounded to the storage.
  void (*dequantize)(const Quantization& q, std::int64_t begin, std::int64_t end);
  /// The FP32 bits of the greatest magnitude (0x7F800000 and more: an Inf or NaN); 0 of none.
  std::uint32_t (*greatest_magnitude)(const void* values, Storage storage, std::int64_t n);
  /// Raises words of `greatest`, which may have zeros, to those of the columns of rows [begin, end)
  /// of q.from. greatest_of_columns_words(q) of them.
  void (*raise_greatest_of_columns)(const Quantization& q, std::int64_t begin, std::int64_t end,
                                    std::uint32_t* greatest);

  /// Pieces [begin, end) of pieces_of(norm, pass) (batch_norm.h).
  void (*batch_norm)(const BatchNorm& norm, BatchNormPass pass, std::int64_t begin,
                     std::int64_t end);
  /// Pieces [begin, end) of pieces_of(norm) (add_norm.h).
  void (*add_norm)(const AddNorm& norm, AddNormPass pass, std::int64_t begin, std::int64_t end);
};

/// The kernels of a path, or null where this build or machine does not have it (path.h says why).
DEMI_API const CpuKernels* cpu_kernels(Path path);

/// Those that path_for(Device::cpu) chooses now, or null where that is aten.
DEMI_API const CpuKernels* cpu_kernels();

}  // namespace demi::kernels
