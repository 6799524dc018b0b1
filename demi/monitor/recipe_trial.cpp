#include "demi/monitor/recipe_trial.h"

#include <torch/types.h>

#include <utility>

#include "demi/autocast/apply.h"
#include "demi/autocast/parts.h"
#include "demi/weights/weights.h"

namespace demi::monitor {
namespace {

// The policy's rules for parts are in force while it lives. Marks that were there come back.
class AppliedPolicy {
 public:
  AppliedPolicy(const OpPolicy& policy, const loop::StepView& view, std::uint64_t seed,
                quantization::ProductObserver* observer) {
    for (const at::Tensor& parameter : view.module.parameters()) {
      before_.emplace_back(parameter, mark_of_part(parameter));
      // The recipe of an earlier run is none of this policy's.
      if (before_.back().second && before_.back().second->quantized) unmark_part(parameter);
    }
    demi::apply(policy, view.module, seed);
    set_step(view.module, view.step - 1);
    for (const auto& [parameter, mark] : before_) {
      const auto now = mark_of_part(parameter);
      if (now && now->quantized) now->quantized->run->observer = observer;
    }
  }
  ~AppliedPolicy() {
    for (auto& [parameter, mark] : before_)
      mark ? mark_part(parameter, *std::move(mark)) : unmark_part(parameter);
    weights::drop();  // which the run's steps would keep up to date
  }
  AppliedPolicy(const AppliedPolicy&) = delete;
  AppliedPolicy& operator=(const AppliedPolicy&) = delete;

 private:
  std::vector<std::pair<at::Tensor, std::optional<PartMark>>> before_;
};

bool are_equal(const checkpoint::NamedTensors& a, const checkpoint::NamedTensors& b) {
  for (const auto& [name, state] : a) {
    const auto other = b.find(name);
    if (other == b.end() || !other->second.equal(state)) return false;
  }
  return true;
}

}  // namespace

bool RecipeTrial::Pass::is_finite() const { return all_finite({loss}) && all_finite(gradients); }

RecipeTrial::Pass RecipeTrial::repeat(const loop::StepView& view, const loop::RepeatOptions& how) {
  RepeatGuard run(view.module);
  run.begin_again(*before_);
  Pass pass{.loss = view.repeat(how)};
  pass.gradients = gradients_of(view.module);
  draws_ = !are_equal(before_->random, Surroundings::of(view.module).random);
  return pass;
}

RecipeTrial::Pass RecipeTrial::in_fp32(const loop::StepView& view) {
  return repeat(view, {.autocast = false, .scaler = false});
}

RecipeTrial::Pass RecipeTrial::in_region(const loop::StepView& view, const OpPolicy& policy,
                                         quantization::ProductObserver* observer) {
  const AppliedPolicy applied(policy, view, seed_, observer);
  return repeat(view, {.scaler = false, .format = c10::kBFloat16, .op_policy = policy});
}

}  // namespace demi::monitor
