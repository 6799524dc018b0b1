#pragma once

#include <ATen/Context.h>

#include <vector>

namespace demi {

/// LibTorch's settings of FP32's precision: those of its newer functions, by backend and kind of
/// operation, and the two of its older ones, which exist beside them and contradict them at times.
class Float32Settings {
 public:
  /// Reads the present settings. Reading changes none, except those of convolutions and recurrent
  /// layers on CUDA: these begin in a state that LibTorch alone can set (TF32 unless a setting
  /// above them differs) and end with TF32 set.
  static Float32Settings now();

  void put_back() const;

 private:
  std::vector<at::Float32Precision> newer_;
  at::Float32MatmulPrecision matmul_ = at::Float32MatmulPrecision::HIGHEST;
  bool convolution_ = false;
};

}  // namespace demi
