#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace demi::profiler {

/// A record of LibTorch's profiler between two moments of one thread or device.
struct Event {
  /// The kind of the record.
  enum class Kind {
    op,        // of ATen, or a custom one: "aten::addmm"; a kernel of demi's: "demi.attention"
    function,  // of backward, around its ops: "AddmmBackward0"
    range,     // named by a program: "demi::forward"
    runtime,   // a call of CUDA's: "cudaStreamSynchronize"
    kernel,    // on a device
    copy       // on a device, or to or from it; memset too
  };
  Kind kind = Kind::op;      // what was seen
  std::string name;          // as LibTorch's profiler has it
  std::uint64_t thread = 0;  // 0 for a device
  /// Begin and end by the profiler's clock, nanoseconds.
  std::int64_t start_ns = 0, end_ns = 0;
  /// Shapes of the arguments, in order; empty where one is no tensor.
  std::vector<std::vector<std::int64_t>> shapes;
  /// Dtypes of the arguments, in order, as LibTorch spells them: "float", "c10::BFloat16",
  /// "Scalar".
  std::vector<std::string> dtypes;
  /// Values of arguments that are whole numbers, truth values or lists of them; empty for others.
  std::vector<std::vector<std::int64_t>> numbers;
  std::uint64_t id = 0;     // of an op
  std::uint64_t op_id = 0;  // of the op that started a kernel; 0: not known

  /// Its duration in milliseconds.
  double ms() const { return 1e-6 * static_cast<double>(end_ns - start_ns); }
};

}  // namespace demi::profiler
