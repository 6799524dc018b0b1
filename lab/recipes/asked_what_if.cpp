#include "lab/recipes/asked_what_if.h"

#include <utility>

#include "demi/core/atomic_file.h"
#include "demi/train/names.h"
#include "lab/recipes/recipe_what_if.h"
#include "lab/recipes/what_if.h"
#include "lab/settings/run_spec.h"

namespace demi::recipes {
namespace {

constexpr const char* kAdvice = "free some space, or name another folder";

}  // namespace

AskedWhatIf::AskedWhatIf(const settings::Resolved& run, int64_t batches)
    : asked_(run.config.what_if) {
  if (parse_precision(asked_).recipe.empty())
    of_format_ = std::make_shared<monitor::WhatIf>(what_if_options(run));
  else
    of_recipe_ = std::make_shared<monitor::RecipeWhatIf>(recipe_what_if_options(run, batches));
}

std::shared_ptr<loop::StepObserver> AskedWhatIf::observer() const {
  if (of_format_) return of_format_;
  return of_recipe_;
}

std::filesystem::path AskedWhatIf::policy_file(const JobOptions& options) const {
  return options.folder / (options.prefix + "op-policy-" + settings::file_name(asked_) + ".txt");
}

void AskedWhatIf::answer(const JobOptions& options, RunResult& result, RunObserver& tells) const {
  if (of_format_) {
    monitor::WhatIfResult asked = of_format_->result();
    if (asked.batches == 0 && !asked.diverged) return;
    const monitor::WhatIfResult& found = result.what_if.emplace(std::move(asked));
    if (!options.folder.empty() && !found.cures.empty()) {
      result.what_if_policy = policy_file(options);
      write_atomically(result.what_if_policy, found.policy_text(), kAdvice);
    }
    return tells.on_what_if(found);
  }
  monitor::RecipeWhatIfResult asked = of_recipe_->result();
  if (asked.batches == 0 && !asked.diverged && asked.refused.empty()) return;
  const monitor::RecipeWhatIfResult& found = result.recipe_what_if.emplace(std::move(asked));
  if (!options.folder.empty() && needs_policy(found)) {
    result.what_if_policy = policy_file(options);
    write_atomically(result.what_if_policy, found.policy_text(), kAdvice);
  }
  tells.on_recipe_what_if(found);
}

}  // namespace demi::recipes
