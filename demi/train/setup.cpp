#include "demi/train/setup.h"

#include "demi/core/error.h"
#include "demi/optim/optimizer.h"

namespace demi::train {

void Setup::shard_optimizers() {
  if (!ranks.are_several()) return;
  for (const auto& optimizer : options.optimizers) {
    auto* ours = dynamic_cast<optim::Optimizer*>(optimizer.get());
    if (!ours)
      throw UsageError({.where = "train.Trainer",
                        .what = "the ranks cannot share the state of this optimizer",
                        .seen = "one of torch::optim's",
                        .accepted = "demi::optim's",
                        .advice = "use one of those, or leave shard_optimizer off"});
    shards.push_back(std::make_unique<distributed::ShardedOptimizerState>(*ours, *ranks.group()));
  }
}

}  // namespace demi::train
