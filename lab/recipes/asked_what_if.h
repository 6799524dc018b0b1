#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "demi/monitor/recipe_what_if.h"
#include "demi/monitor/what_if.h"
#include "lab/recipes/run.h"
#include "lab/settings/resolved.h"

namespace demi::recipes {

/// What Config::what_if of an FP32 run asks: about a format or about a recipe.
class AskedWhatIf {
 public:
  /// `batches`: of an epoch.
  AskedWhatIf(const settings::Resolved& run, int64_t batches);

  /// The observer that finds the answer.
  std::shared_ptr<loop::StepObserver> observer() const;
  /// Puts the answer into the result, writes the policy file that a run without harm needs, and
  /// tells the observer; nothing if no batch was looked at.
  void answer(const JobOptions& options, RunResult& result, RunObserver& tells) const;

 private:
  std::filesystem::path policy_file(const JobOptions& options) const;

  const std::string asked_;
  std::shared_ptr<monitor::WhatIf> of_format_;        // null: it asks about a recipe
  std::shared_ptr<monitor::RecipeWhatIf> of_recipe_;  // null: it asks about a format
};

}  // namespace demi::recipes
