#pragma once

#include <ATen/record_function.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"
#include "lab/profiler/captured_output.h"

namespace demi::profiler {

/// A kernel of oneDNN or MKL that an op called on a CPU.
struct CpuKernel {
  std::string op;     // "aten::addmm"
  std::string name;   // "matmul brg_matmul:avx512_core_bf16", "MKL SGEMM"
  std::string dtype;  // of its first source, as the library spells it: "bf16"; "" if it is not said
  std::int64_t calls = 0;
};

/// oneDNN's and MKL's own logs, on while this lives, of the ops of this thread: which kernel each
/// of them called. They write to the standard output, which is caught meanwhile. Makes the ops
/// slower, so nothing is timed meanwhile. One at a time.
class DEMI_API KernelLog {
 public:
  KernelLog();
  ~KernelLog();
  KernelLog(const KernelLog&) = delete;
  KernelLog& operator=(const KernelLog&) = delete;

  /// Whether oneDNN writes its log.
  bool is_open() const { return output_.is_open() && is_logging_; }

  /// Ends it. Kernels by op, the one with the most calls first.
  std::vector<CpuKernel> finish();

 private:
  void stop();

  CapturedOutput output_;
  bool is_logging_ = false;
  std::optional<at::CallbackHandle> handle_;
};

/// The kernels in a log: lines of oneDNN and MKL between the marks of ops, as KernelLog writes
/// them.
DEMI_API std::vector<CpuKernel> kernels_of(std::string_view log);

/// The mark at the begin of an op, and that at its end.
DEMI_API std::string begin_mark(std::string_view op);
inline constexpr std::string_view kEndMark = "demi_op_end";

}  // namespace demi::profiler
