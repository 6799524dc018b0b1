#include "lab/recipes/model_flops.h"

namespace demi::recipes {

std::optional<ModelFlops> model_flops(const train::History& history, int64_t tokens_of_example,
                                      double per_token, double peak_per_second) {
  double examples = 0, seconds = 0;
  for (const train::EpochRecord& epoch : history.epochs) {
    examples += static_cast<double>(epoch.examples);
    seconds += epoch.seconds;
  }
  if (seconds <= 0 || per_token <= 0) return std::nullopt;
  return ModelFlops{
      .tokens_per_second = examples * static_cast<double>(tokens_of_example) / seconds,
      .per_token = per_token,
      .peak_per_second = peak_per_second};
}

}  // namespace demi::recipes
