#pragma once

#include <ATen/autocast_mode.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <memory>

#include "demi/autocast/thread_tables.h"

namespace demi {

/// The state of autocast that an op of this thread finds, on every device: on or off, dtype, op
/// policy, and whether copies of weights may be used. A value type.
class RecordedRegion {
 public:
  /// Records the state that an op of this thread finds now.
  RecordedRegion();

  class Guard;

 private:
  struct OfDevice {
    c10::DeviceType device;
    bool enabled;
    c10::ScalarType dtype;
    const OpTable* table;
  };
  void set(bool cache_enabled) const;

  std::array<OfDevice, at::autocast::_AUTOCAST_SUPPORTED_DEVICES.size()> devices_;
  bool cache_enabled_, torch_cache_enabled_;
};

/// Gives this thread the recorded state until the end of the scope. Each weight is cast once in it.
class RecordedRegion::Guard {
 public:
  [[nodiscard]] explicit Guard(const RecordedRegion& recorded);
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  RecordedRegion outside_;
  std::shared_ptr<RegionState> inherited_;
  ThreadTables tables_;
};

}  // namespace demi
