#pragma once

#include <string>

#include "demi/checkpoint/checkpoint.h"
#include "demi/core/export.h"
#include "demi/train/setup.h"

// Unlike processors may multiply bf16 numbers in two ways, which differ in the last bits
// (core/bf16_products.h), and Muon's matrices in two dtypes (optim::MatrixProducts). A run whose
// ranks do so, or that is resumed in the other way, is warned.
namespace demi::train {

/// The key of the checkpoint's text that names the way.
inline constexpr const char* kBf16ProductsText = "demi.bf16_products";

/// The key of the checkpoint's text that names the dtypes of Muon's products.
inline constexpr const char* kMatrixProductsText = "demi.matrix_products";

/// The way of this run; "" if it multiplies no bf16 numbers in a region on a CPU.
std::string bf16_way_of(const Setup& setup);

/// The dtypes of the matrix products of the run's optimizers: "bf16", "bf16, fp32"; "" if none is
/// Muon.
std::string matrix_products_of(const Setup& setup);

/// The warning if so many ranks multiply in bf16, and so many through FP32; "" if all do alike.
DEMI_API std::string difference_of_ranks(double in_bf16, double through_fp32);

/// Warns on rank 0. A collective call if there are several ranks.
void warn_if_ranks_differ(const Setup& setup);

/// Warns on rank 0 if the run of the checkpoint multiplied in the other way than `setup` does.
void warn_if_resumed_otherwise(const checkpoint::Metadata& text, const Setup& setup);

}  // namespace demi::train
