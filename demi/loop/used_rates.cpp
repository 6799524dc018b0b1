#include "demi/loop/used_rates.h"

#include <algorithm>
#include <cstdint>

#include "demi/optim/optimizer.h"

namespace demi::loop {

std::vector<double> used_rates(const torch::optim::Optimizer& optimizer,
                               const std::vector<const std::vector<StepResult>*>& steps) {
  const auto* own = dynamic_cast<const optim::Optimizer*>(&optimizer);
  const at::Tensor table = own ? own->scheduled_rates(0) : at::Tensor();
  if (!table.defined() || steps.empty()) return {};
  std::vector<bool> was_taken;
  for (const auto* step : steps)
    was_taken.push_back(std::ranges::any_of(*step, [&](const StepResult& result) {
      return result.optimizer() == &optimizer && !result.skipped();
    }));
  std::int64_t before = own->steps_taken() - std::ranges::count(was_taken, true);
  const auto* rates = table.const_data_ptr<double>();
  std::vector<double> used;
  for (const bool taken : was_taken) {
    used.push_back(rates[std::clamp<std::int64_t>(before, 0, table.numel() - 1)]);
    before += taken ? 1 : 0;
  }
  return used;
}

}  // namespace demi::loop
