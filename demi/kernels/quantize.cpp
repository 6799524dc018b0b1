#include "demi/kernels/quantize.h"

#include "demi/kernels/quantize_tiles.h"

namespace demi::kernels {

std::int64_t pieces_of(const Quantization& q) { return tiles_of(q); }

}  // namespace demi::kernels
