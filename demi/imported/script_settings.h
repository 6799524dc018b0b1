#pragma once

#include "demi/core/export.h"

namespace demi::imported {

/// Switches off LibTorch's own autocast pass of TorchScript, whose lists differ from autocast's,
/// and the profiling executor, which fuses and differentiates operations by itself: operations then
/// go one by one through the dispatcher. Both are settings of the process: the first of several
/// objects switches them off, the last one restores them, also after an exception.
class DEMI_API ScriptSettings {
 public:
  ScriptSettings();
  ~ScriptSettings();
  ScriptSettings(const ScriptSettings&) = delete;
  ScriptSettings& operator=(const ScriptSettings&) = delete;
};

}  // namespace demi::imported
