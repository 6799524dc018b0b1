#pragma once

#include <string>

#include "demi/core/export.h"
#include "demi/monitor/monitor.h"
#include "demi/monitor/origin.h"
#include "demi/monitor/recipe_what_if.h"
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

  /// Called before each run of a comparison, and before each of its turns.
  virtual void on_run_begin(const settings::RunSpec&) {}
  /// Called with notes for people before the first step: on a damaged checkpoint that was passed
  /// over, on one of another LibTorch.
  virtual void on_note(const std::string&) {}
  /// Called before the first step of a resumed run, with its history so far.
  virtual void on_resume(const settings::RunSpec&, const train::History&) {}

  /// Asked before the first step, after each, and before each batch of an evaluation.
  virtual bool should_stop() { return false; }
  /// A number that rises from 0 whenever somebody asks for a checkpoint; training continues.
  virtual int save_requests() { return 0; }
  /// Called before a checkpoint is saved, so that the reports of its steps reach the disk with it.
  virtual void before_save() {}
  /// Called before a checkpoint of the run with this label is saved, which holds the returned
  /// lines; only with JobOptions::history_steps. The lines of its steps are then on disk, in the
  /// file metrics.jsonl of the run's folder, from which a resumed run reads them.
  virtual StepLines keep_steps(const std::string& /*label*/) { return {}; }

  /// A step that the monitor looked at (Config::monitor), after the callbacks.
  virtual void on_health(const monitor::StepHealth&) {}
  /// An origin of Inf or NaN (Config::detect_anomaly), when monitor::OriginSearch reports it.
  virtual void on_origin(const monitor::Origin&) {}
  /// Called at the end with the effect that 16 bits would have had (Config::what_if).
  virtual void on_what_if(const monitor::WhatIfResult&) {}
  /// Likewise with the effect that a recipe would have had.
  virtual void on_recipe_what_if(const monitor::RecipeWhatIfResult&) {}
};

}  // namespace demi::recipes
