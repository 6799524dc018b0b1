#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/profiler/event.h"

namespace demi::profiler {

/// LibTorch's profiler (Kineto), on from construction until `finish` or the end of the scope. It
/// sees this thread, the threads of its backward passes, and the device. One at a time in a
/// process.
class DEMI_API Recording {
 public:
  /// Throws DeviceError if a profiler is on already, or if this LibTorch has none.
  explicit Recording(c10::Device device);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  /// Waits for the device and ends it. Events by thread, and by their start within a thread; those
  /// of a device last.
  std::vector<Event> finish();

  /// The missing records, for people: a device's kernels without permission. After `finish`.
  const std::vector<std::string>& missing() const { return missing_; }

  /// Writes the trace for chrome://tracing and ui.perfetto.dev, after `finish`, without this
  /// machine's name. Throws TrainingError if the file cannot be written.
  void save(const std::filesystem::path& file) const;

 private:
  struct Result;
  c10::Device device_;
  std::unique_ptr<Result> result_;
  std::vector<std::string> missing_;
  bool is_on_ = false;
};

/// Ranges for a profiler of the system's, around each op and phase while this lives: NVTX (Nsight
/// Systems) or ITT (VTune). Throws DeviceError where LibTorch has none.
class DEMI_API Ranges {
 public:
  /// The ranges' profiler: NVIDIA's or Intel's.
  enum class Kind { nvtx, itt };
  explicit Ranges(Kind kind);
  ~Ranges();
  Ranges(const Ranges&) = delete;
  Ranges& operator=(const Ranges&) = delete;
};

}  // namespace demi::profiler
