#pragma once

#include <string>

#include "demi/core/export.h"
#include "demi/monitor/monitor.h"
#include "demi/monitor/origin.h"
#include "demi/monitor/what_if.h"
#include "demi/train/history.h"
#include "lab/recipes/step_lines.h"
#include "lab/settings/run_spec.h"

namespace demi::recipes {

/// Watches training runs, and says when they save and stop. Its functions are called in the thread
/// that trains; by default they do nothing.
class DEMI_API RunObserver {
 public:
  virtual ~RunObserver() = default;

  /// Of a comparison: before each run, and before each of its turns.
  virtual void on_run_begin(const settings::RunSpec&) {}
  /// What people should know before the first step: a damaged checkpoint that was passed over, one
  /// of another LibTorch.
  virtual void on_note(const std::string&) {}
  /// Before the first step of a resumed run, with what it has done so far.
  virtual void on_resume(const settings::RunSpec&, const train::History&) {}

  /// Asked before the first step, after each, and before each batch of an evaluation.
  virtual bool should_stop() { return false; }
  /// A number that rises from 0 whenever somebody asks for a checkpoint; training continues.
  virtual int save_requests() { return 0; }
  /// Before a checkpoint is saved, so that what has been reported of its steps reaches the disk
  /// with it.
  virtual void before_save() {}
  /// With JobOptions::history_steps, before a checkpoint of the run with this label is saved, which
  /// holds what it returns. The lines of its steps are on the disk then, in the file metrics.jsonl
  /// of the run's folder, from which a resumed run reads them.
  virtual StepLines keep_steps(const std::string& /*label*/) { return {}; }

  /// A step that the monitor looked at (Config::monitor), after the callbacks.
  virtual void on_health(const monitor::StepHealth&) {}
  /// An origin of Inf or NaN (Config::detect_anomaly), when monitor::OriginSearch reports it.
  virtual void on_origin(const monitor::Origin&) {}
  /// At the end, what 16 bits would have done (Config::what_if).
  virtual void on_what_if(const monitor::WhatIfResult&) {}
};

}  // namespace demi::recipes
