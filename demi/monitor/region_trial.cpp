#include "demi/monitor/region_trial.h"

#include <torch/types.h>

#include <cmath>
#include <exception>
#include <utility>
#include <vector>

#include "demi/autocast/parts.h"
#include "demi/monitor/find_origin.h"

namespace demi::monitor {
namespace {

// The policy's parts are in FP32 while it lives. Marks that were there come back.
class KeptParts {
 public:
  KeptParts(const OpPolicy& policy, const torch::nn::Module& model) {
    for (const auto& module : model.named_modules("", /*include_self=*/false))
      for (const std::string& part : policy.fp32_parts())
        if (module.key() == part)
          for (const at::Tensor& p : module.value()->parameters()) {
            before_.emplace_back(p, mark_of_part(p));
            mark_part(p, c10::kFloat);
          }
  }
  // Restores from the back: a parameter that two parts have was marked when the second one came.
  ~KeptParts() {
    while (!before_.empty()) {
      const auto& [parameter, mark] = before_.back();
      mark ? mark_part(parameter, *mark) : unmark_part(parameter);
      before_.pop_back();
    }
  }
  KeptParts(const KeptParts&) = delete;
  KeptParts& operator=(const KeptParts&) = delete;

 private:
  std::vector<std::pair<at::Tensor, std::optional<PartMark>>> before_;
};

}  // namespace

loop::RepeatOptions RegionTrial::how(const OpPolicy& policy, double scale) const {
  return {.format = format_, .op_policy = policy, .loss_scale = scale};
}

void RegionTrial::before_forward(const loop::StepView& view) {
  before_ = Surroundings::of(view.module);
}

void RegionTrial::run(const loop::StepView& view, const OpPolicy& policy) {
  is_finite(view, policy, scale_.begin);
}

bool RegionTrial::is_finite(const loop::StepView& view, const OpPolicy& policy, double scale) {
  const torch::nn::Module& module = view.module;
  RepeatGuard run(module);
  run.begin_again(*before_);
  const KeptParts parts(policy, module);
  try {
    const at::Tensor loss = view.repeat(how(policy, scale));
    return all_finite({loss}) && all_finite(gradients_of(module));
  } catch (const std::exception&) {
    return false;  // find() names the op, and the reason
  }
}

bool RegionTrial::is_finite(const loop::StepView& view, const OpPolicy& policy) {
  if (is_finite(view, policy, scale_.begin)) return true;
  if (!scale_.is_dynamic || scale_.begin <= 1 || !is_finite(view, policy, 1)) return false;
  double fits = 1, overflows = scale_.begin;
  while (overflows / fits > 2) {
    const double middle = fits * std::exp2(std::floor(std::log2(overflows / fits) / 2));
    (is_finite(view, policy, middle) ? fits : overflows) = middle;
  }
  scale_.begin = fits;
  return true;
}

std::optional<Origin> RegionTrial::find(const loop::StepView& view, const OpPolicy& policy) {
  const torch::nn::Module& module = view.module;
  RepeatGuard run(module);
  const KeptParts parts(policy, module);
  return find_origin(view, run, *before_, how(policy, scale_.is_dynamic ? 1 : scale_.begin));
}

}  // namespace demi::monitor
