#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/bench/progress.h"
#include "lab/bench/roofline.h"
#include "lab/bench/square_product.h"
#include "lab/recipes/machine.h"

namespace demi::bench {

/// `demi bench matmul`: products of square matrices, by dtype and size.
struct MatmulBenchOptions {
  std::vector<int64_t> sizes{1000, 1001, 1024,
                             4096};      // rows and columns of the matrices, 1 or more
  std::vector<std::string> dtypes = {};  // of product_kinds(); empty: all. FP32 is always timed
  int64_t iterations = 100;              // products of each row; 1 or more
  double seconds = 5;                    // after which a row ends with fewer; above 0
  OnPart on_part = {};                   // told of the parts
};

/// A kind of product of one size.
struct MatmulRow {
  ProductKind kind;  // how it was computed
  /// Rows and columns of the matrices; products that were timed.
  int64_t size = 0, iterations = 0;
  double seconds = 0;  // of one product, the median of the rounds
  double tflops = 0;   // 10^12 multiplications and additions a second
  double speedup = 1;  // FP32's seconds over this row's
  double of_peak = 0;  // tflops over what the roofline allows this size
  double error = 0;    // SquareProduct::error
};

/// A row that was not measured, because one product was foreseen to take longer than all of the
/// row may: by the time of the next smaller size and the cube of the sizes' ratio.
struct MatmulLeftOut {
  ProductKind kind;             // how it would have been computed
  int64_t size = 0;             // rows and columns of the matrices
  double foreseen_seconds = 0;  // of one product
};

/// The results of `demi bench matmul`.
struct MatmulBenchResult {
  recipes::Machine machine;             // that it was measured on
  std::vector<MatmulRow> rows;          // by size, FP32 first in each
  std::vector<MatmulLeftOut> left_out;  // never FP32, which the others are set against
  double copy_gb_per_s = 0;  // of a copy on the device, 10^9 bytes read and written a second
  std::map<std::string, double> peak_tflops;  // by dtype: the best that this run has seen of it
};

/// The greatest size whose matrices, and what is needed to check and time them, fit in that memory.
DEMI_API int64_t most_size(int64_t free_bytes);

/// Checks each product against FP64 and times it then, the kinds of one size in turn. Throws
/// UsageError: a size below 1 or beyond the free memory, with the bound; TrainingError: a product
/// is wrong, and nothing of that size is timed.
DEMI_API MatmulBenchResult bench_matmul(const MatmulBenchOptions& options, c10::Device device);

}  // namespace demi::bench
