#include "demi/kernels/add_norm.h"

#include "demi/kernels/add_norm_pieces.h"

namespace demi::kernels {

std::int64_t pieces_of(const AddNorm& norm) {
  return (norm.rows + rows_of_piece(norm) - 1) / rows_of_piece(norm);
}

}  // namespace demi::kernels
