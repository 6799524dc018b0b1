#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lab/recipes/run_observer.h"

namespace demi::recipes::testing {

/// Counts the events of runs, and stops them when `stops` returns true.
struct Watch : RunObserver {
  std::function<bool()> stops = [] { return false; };
  std::string begun;                 // "LABEL " of each run or turn
  std::vector<std::string> notes;    // in words
  std::vector<std::size_t> resumed;  // steps that each resumed run had taken
  std::size_t saves = 0, health = 0, origins = 0;

  void on_run_begin(const settings::RunSpec& run) override { begun += run.label + " "; }
  void on_note(const std::string& text) override { notes.push_back(text); }
  void on_resume(const settings::RunSpec&, const train::History& history) override {
    resumed.push_back(history.steps.size());
  }
  bool should_stop() override { return stops(); }
  void before_save() override { ++saves; }
  void on_health(const monitor::StepHealth&) override { ++health; }
  void on_origin(const monitor::Origin&) override { ++origins; }
};

}  // namespace demi::recipes::testing
