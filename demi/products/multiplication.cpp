#include "demi/products/multiplication.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "demi/kernels/cpu_kernels.h"
#include "demi/tensor/dtype.h"

namespace demi::products {
namespace {

// A task's part of the result: so many columns of b in FP32 stay in a cache of the second level,
// and the sums of so many rows beside them in one of the third.
constexpr int64_t kMostRows = 1008, kMostColumns = 512;
// Products of so many pairs of numbers are one task.
constexpr int64_t kSmall = 1 << 18;

struct Part {
  int64_t first, size;
};

/// Part `index` of `parts` of [0, size), made of whole pieces of `piece`.
Part part_of(int64_t size, int64_t piece, int64_t parts, int64_t index) {
  const int64_t pieces = ratio_up(size, piece), first = pieces * index / parts * piece;
  return {first, std::min(size, pieces * (index + 1) / parts * piece) - first};
}

/// Into how many parts the rows and the columns of a result are split: as many tasks for each
/// thread. Changes no bit (kernels/product.h).
struct Split {
  int64_t rows, columns;

  Split(int64_t m, int64_t k, int64_t n, int64_t batch)
      : rows(ratio_up(m, kMostRows)), columns(ratio_up(n, kMostColumns)) {
    const int64_t threads = at::get_num_threads();
    if (m * k * n < kSmall || rows * columns * batch % threads == 0 || batch > 4 * threads) return;
    const int64_t most_rows = ratio_up(m, kLeastRows), most_columns = ratio_up(n, kLeastColumns);
    if (columns >= rows || most_rows < 2 * threads)
      columns = std::min(most_columns, ratio_up(columns, threads) * threads);
    else
      rows = std::min(most_rows, ratio_up(rows, threads) * threads);
  }
};

/// A matrix of a batch, or the only one.
struct Matrices {
  char* data = nullptr;
  int64_t size = 0, of_batch = 0, row = 0, column = 0;

  Matrices() = default;
  explicit Matrices(const at::Tensor& t)
      : data(static_cast<char*>(const_cast<void*>(t.const_data_ptr()))),
        size(t.element_size()),
        of_batch(t.dim() == 3 ? t.stride(0) : 0),
        row(t.stride(-2)),
        column(t.stride(-1)) {}
  char* at(int64_t matrix, int64_t i, int64_t j) const {
    return data + (matrix * of_batch + i * row + j * column) * size;
  }
};

/// A product of matrices or of batches of them, whose rows or columns are dense. out is contiguous;
/// addend is undefined or of out's sizes in FP32.
class Multiplication {
 public:
  Multiplication(const at::Tensor& out, const at::Tensor& addend, const at::Tensor& left,
                 const at::Tensor& right, const Scales& scales)
      : a_(left),
        b_(right),
        c_(out),
        k_(left.size(-1)),
        scales_(scales),
        storage_(tensor::storage_of(left.scalar_type())),
        result_(tensor::storage_of(out.scalar_type())) {
    if (addend.defined()) addend_ = Matrices(addend);
  }

  /// What a part of at most so many rows and columns works in.
  at::Tensor work(int64_t rows, int64_t columns) const {
    return at::empty({kernels::work_size(rows, k_, columns)}, at::kFloat);
  }

  /// out = beta addend + alpha a b, rounded to out's dtype, in a part of a matrix.
  void run(int64_t matrix, const Part& rows, const Part& columns, const at::Tensor& work) const {
    const auto multiply = kernels::cpu_kernels()->multiply;
    multiply({.storage = storage_,
              .result = result_,
              .m = rows.size,
              .k = k_,
              .n = columns.size,
              .a = a_.at(matrix, rows.first, 0),
              .a_row = a_.row,
              .a_column = a_.column,
              .b = b_.at(matrix, 0, columns.first),
              .b_row = b_.row,
              .b_column = b_.column,
              .c = c_.at(matrix, rows.first, columns.first),
              .c_row = c_.row,
              .addend = addend_.data ? reinterpret_cast<const float*>(
                                           addend_.at(matrix, rows.first, columns.first))
                                     : nullptr,
              .addend_row = addend_.row,
              .addend_column = addend_.column,
              .beta = static_cast<float>(scales_.beta),
              .alpha = static_cast<float>(scales_.alpha),
              .work = work.mutable_data_ptr<float>()});
  }

 private:
  Matrices a_, b_, c_, addend_;
  int64_t k_;
  Scales scales_;
  kernels::Storage storage_, result_;
};

/// A part of a symmetric matrix on or above its diagonal.
struct UpperPart {
  Part rows, columns;
};

/// Parts that hold each number of a symmetric matrix of `size` rows on or above its diagonal; of
/// the squares on it, all numbers. At least twice as many as threads, unless they became too small.
std::vector<UpperPart> upper_parts(int64_t size, int64_t batch) {
  const int64_t enough = 2 * at::get_num_threads();
  int64_t height = size < 1024 ? kLeastRows : 2 * kLeastRows, width = kMostColumns;
  const auto count = [&] {
    return batch * ratio_up(size, height) * (ratio_up(size, width) + 1) / 2;
  };
  while (count() < enough && width > kLeastColumns) width /= 2;
  if (count() < enough) height = kLeastRows;
  std::vector<UpperPart> parts;
  for (int64_t row = 0; row < size; row += height)
    for (int64_t column = row; column < size; column += width)
      parts.push_back(
          {{row, std::min(height, size - row)}, {column, std::min(width, size - column)}});
  return parts;
}

/// Writes the numbers of a part that lie right of the diagonal's square below the diagonal, too.
void mirror(float* matrix, int64_t size, const UpperPart& part) {
  constexpr int64_t kPiece = 16;
  const int64_t last_row = part.rows.first + part.rows.size,
                last_column = part.columns.first + part.columns.size;
  for (int64_t column = std::max(part.columns.first, last_row); column < last_column;
       column += kPiece)
    for (int64_t row = part.rows.first; row < last_row; row += kPiece)
      for (int64_t j = column; j < std::min(column + kPiece, last_column); ++j)
        for (int64_t i = row; i < std::min(row + kPiece, last_row); ++i)
          matrix[j * size + i] = matrix[i * size + j];
}

}  // namespace

void multiply(const at::Tensor& out, const at::Tensor& addend, const at::Tensor& left,
              const at::Tensor& right, const Scales& scales) {
  const Multiplication multiplication(out, addend, left, right, scales);
  const int64_t m = out.size(-2), n = out.size(-1), batch = out.dim() == 3 ? out.size(0) : 1;
  const Split split(m, left.size(-1), n, batch);
  const int64_t parts = split.rows * split.columns;
  at::parallel_for(0, batch * parts, 1, [&](int64_t begin, int64_t end) {
    // Of the largest part.
    const int64_t tallest = ratio_up(ratio_up(m, kLeastRows), split.rows) * kLeastRows,
                  widest = ratio_up(ratio_up(n, kLeastColumns), split.columns) * kLeastColumns;
    const at::Tensor work = multiplication.work(std::min(m, tallest), std::min(n, widest));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t part = task % parts;
      multiplication.run(task / parts, part_of(m, kLeastRows, split.rows, part % split.rows),
                         part_of(n, kLeastColumns, split.columns, part / split.rows), work);
    }
  });
}

void multiply_symmetric(const at::Tensor& out, const at::Tensor& addend, const at::Tensor& left,
                        const at::Tensor& right, const Scales& scales) {
  const Multiplication multiplication(out, addend, left, right, scales);
  const int64_t size = out.size(-1), batch = out.dim() == 3 ? out.size(0) : 1;
  const std::vector<UpperPart> parts = upper_parts(size, batch);
  const auto count = static_cast<int64_t>(parts.size()), tasks = batch * count;
  // Parts differ in size, so a thread takes the next one when it is ready.
  std::atomic<int64_t> next = 0;
  at::parallel_for(0, std::min<int64_t>(at::get_num_threads(), tasks), 1, [&](int64_t, int64_t) {
    const at::Tensor work =
        multiplication.work(parts.front().rows.size, parts.front().columns.size);
    for (int64_t task = next++; task < tasks; task = next++) {
      const UpperPart& part = parts[static_cast<std::size_t>(task % count)];
      multiplication.run(task / count, part.rows, part.columns, work);
      mirror(out.mutable_data_ptr<float>() + task / count * size * size, size, part);
    }
  });
}

}  // namespace demi::products
