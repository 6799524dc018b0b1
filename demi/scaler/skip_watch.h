#pragma once

#include <ATen/core/Tensor.h>

#include "demi/core/export.h"

namespace demi {

/// Counts skipped steps, in all and in a row. The host reads the count without waiting for a
/// device: a device keeps its own count and copies it to pinned memory after each step, and
/// latest() returns the count of some steps ago. A captured copy is replayed with the rest of the
/// step.
class DEMI_API SkipWatch {
 public:
  struct Count {
    int64_t skips_in_a_row = 0;
    float scale = 0;    // for the next step
    int64_t skips = 0;  // in all
  };

  void count(bool skipped, float scale);
  /// fp32, (), all on one device. Does not synchronise. Nothing is counted if `held` is defined and
  /// not 0; found_inf is 0 then.
  void count(const at::Tensor& found_inf, const at::Tensor& scale, const at::Tensor& held = {});

  /// The memory of a device that counts by a kernel, which writes all three.
  struct OnDevice {
    float* skips_in_a_row;  // on the device
    float* skips;           // likewise
    float* mirror;          // [3], pinned: skips in a row, scale, skips
  };
  /// `like`: a tensor on that device.
  OnDevice on_device(const at::Tensor& like);
  /// Notes the launch of that kernel on the device's current stream: the mirror's memory is not
  /// used again before the kernel has written it.
  void note_launch() const;

  /// The latest count that the host has.
  Count latest() const;

  /// Warns once in each row of at least so many skipped steps; where a device decides, some steps
  /// late. 0: never.
  void warn(int64_t after);

  /// Keeps the memory for ever, for a stream capture: the graph may outlive this.
  void keep_for_graphs() const;

 private:
  void create(const at::Tensor& like);

  Count host_;
  at::Tensor skips_in_a_row_;  // fp32, (), on the device
  at::Tensor skips_;           // likewise
  at::Tensor mirror_;          // fp32, (3), pinned: skips in a row, scale, skips
  bool warned_ = false;        // of the present row
};

}  // namespace demi
