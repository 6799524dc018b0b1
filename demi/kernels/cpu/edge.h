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

/// A tensor as one without coded arrays, a piece of at most kEdge elements at a time: where an
/// array is coded, the piece's lies here. What does not change from piece to piece is made once.
class Pieces {
 public:
  Pieces(const StepTable& table, const Work& work) : whole_(work), piece_(work) {
    const TensorEntry& tensor = work.tensor;
    if (tensor.coded_parameter.parameter) {
      piece_.tensor.parameter = parameter_;
      stream_ = stream_of(rounding_key(table, tensor, kWeightArray));
    }
    for (int m = 0; m < 3; ++m) {
      if (!is_coded(work, m)) continue;
      piece_.tensor.moment[m] = moment_[m];
      streams_[m] = stream_of(rounding_key(table, tensor, m));
    }
  }
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;

  /// Elements [at, at + n), decoded.
  const Work& open(std::int64_t at, int n) {
    const TensorEntry& tensor = whole_.tensor;
    TensorEntry& piece = piece_.tensor;
    if (tensor.coded_parameter.parameter)
      decode(parameter_, tensor.coded_parameter, at, n);
    else
      piece.parameter = tensor.parameter + at;
    piece.gradient =
        static_cast<const std::byte*>(tensor.gradient) + at * bytes_of(tensor.gradient_storage);
    if (whole_.direction)
      piece_.direction =
          static_cast<std::byte*>(whole_.direction) + at * bytes_of(whole_.direction_storage);
    for (int k = 0; k < 2; ++k)
      if (tensor.copy[k])
        piece.copy[k] =
            static_cast<std::byte*>(tensor.copy[k]) + at * bytes_of(tensor.copy_storage[k]);
    for (int m = 0; m < 3; ++m) {
      if (is_coded(whole_, m))
        decode(moment_[m], tensor.coded_moment[m], at, n);
      else if (tensor.moment[m])
        piece.moment[m] = tensor.moment[m] + at;
    }
    return piece_;
  }

  void close_parameter(std::int64_t at, int n) const {
    if (whole_.tensor.coded_parameter.parameter)
      encode(whole_.tensor.coded_parameter, parameter_, at, n, Draws(stream_, at));
  }

  void close_moments(std::int64_t at, int n) const {
    for (int m = 0; m < 3; ++m)
      if (is_coded(whole_, m))
        encode(whole_.tensor.coded_moment[m], moment_[m], at, n, Draws(streams_[m], at));
  }

 private:
  const Work& whole_;
  Work piece_;
  RandomStream stream_{}, streams_[3]{};
  alignas(64) float parameter_[kEdge];
  alignas(64) float moment_[3][kEdge];
};

/// act(at, n) for the pieces of a range.
template <class Act>
inline void each_piece(Range range, Act act) {
  for (std::int64_t at = range.begin; at < range.end; at += kEdge)
    act(at, static_cast<int>(range.end - at < kEdge ? range.end - at : kEdge));
}

}  // namespace
}  // namespace demi::kernels
