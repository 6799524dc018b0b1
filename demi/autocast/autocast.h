#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>

#include "demi/core/export.h"

namespace demi {

struct AutocastOptions {
  std::optional<c10::ScalarType> dtype;  // fp16 on CUDA and bf16 on CPU where not given
  bool enabled = true;                   // false: an FP32 sub-region inside an enabled one
  bool cache_enabled = true;  // one cast a weight and region; the state outside is kept where false
};

/// A region of automatic mixed precision on one device type, in this thread, until the end of the
/// scope.
///
/// Regions nest: the innermost decides, and leaving one (also by an exception) restores what was
/// set outside of it. Backward belongs outside the region. Not copied, not moved, not shared
/// between threads. Does not synchronise.
class DEMI_API Autocast {
 public:
  explicit Autocast(c10::DeviceType device, AutocastOptions options = {});
  Autocast(c10::DeviceType device, c10::ScalarType dtype)
      : Autocast(device, AutocastOptions{.dtype = dtype}) {}
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
  c10::ScalarType outer_dtype_;
  bool outer_enabled_;
  bool outer_cache_enabled_;
};

}  // namespace demi
