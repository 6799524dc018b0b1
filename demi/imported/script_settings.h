#pragma once

#include "demi/core/export.h"

namespace demi::imported {

/// While one lives, LibTorch's TorchScript has neither its own autocast pass, whose lists are
/// others than autocast's, nor the profiling executor, which fuses and differentiates operations by
/// itself: they then go one by one through the dispatcher. Both are settings of the process: the
/// first of several puts them off, the last one puts back what was there, also after an exception.
class DEMI_API ScriptSettings {
 public:
  ScriptSettings();
  ~ScriptSettings();
  ScriptSettings(const ScriptSettings&) = delete;
  ScriptSettings& operator=(const ScriptSettings&) = delete;
};

}  // namespace demi::imported
