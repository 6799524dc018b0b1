#pragma once

#include <cstdint>

#include "demi/kernels/blocks.h"
#include "demi/kernels/cpu/coded.h"

// Coded arrays at the edge of the passes: a piece of a tensor whose coded arrays lie in FP32 in the
// first level cache, on which the rule works as on any other. Internal linkage.
namespace demi::kernels {
namespace {

inline bool is_coded(const TensorEntry& tensor) {
  return tensor.coded_parameter.parameter || tensor.coded_moment[0].values ||
         tensor.coded_moment[1].values || tensor.coded_moment[2].values;
}

/// Whether the rule keeps the state, and it is coded.
inline bool is_coded(const Work& work, int m) {
  return (work.arrays >> m & 1u) != 0 && work.tensor.coded_moment[m].values;
}

/// The coded arrays of kEdge elements, in FP32.
struct Edge {
  float parameter[kEdge];
  float moment[3][kEdge];
};

/// The tensor from element `at` on, as a tensor of n <= kEdge elements without coded arrays.
inline Work opened(const Work& work, std::int64_t at, int n, Edge& edge) {
  Work piece = work;
  TensorEntry& tensor = piece.tensor;
  if (tensor.coded_parameter.parameter) {
    decode(edge.parameter, tensor.coded_parameter, at, n);
    tensor.parameter = edge.parameter;
  } else {
    tensor.parameter += at;
  }
  tensor.gradient =
      static_cast<const std::byte*>(tensor.gradient) + at * bytes_of(tensor.gradient_storage);
  for (int k = 0; k < 2; ++k)
    if (tensor.copy[k])
      tensor.copy[k] =
          static_cast<std::byte*>(tensor.copy[k]) + at * bytes_of(tensor.copy_storage[k]);
  for (int m = 0; m < 3; ++m) {
    if (is_coded(work, m)) {
      decode(edge.moment[m], tensor.coded_moment[m], at, n);
      tensor.moment[m] = edge.moment[m];
    } else if (tensor.moment[m]) {
      tensor.moment[m] += at;
    }
  }
  return piece;
}

inline void close_parameter(const StepTable& table, const Work& work, std::int64_t at, int n,
                            const Edge& edge) {
  if (work.tensor.coded_parameter.parameter)
    encode(work.tensor.coded_parameter, edge.parameter, at, n,
           rounding_key(table, work.tensor, kWeightArray));
}

inline void close_moments(const StepTable& table, const Work& work, std::int64_t at, int n,
                          const Edge& edge) {
  for (int m = 0; m < 3; ++m)
    if (is_coded(work, m))
      encode(work.tensor.coded_moment[m], edge.moment[m], at, n,
             rounding_key(table, work.tensor, m));
}

/// act(at, n) for the pieces of a range.
template <class Act>
inline void each_piece(Range range, Act act) {
  for (std::int64_t at = range.begin; at < range.end; at += kEdge)
    act(at, static_cast<int>(range.end - at < kEdge ? range.end - at : kEdge));
}

}  // namespace
}  // namespace demi::kernels
