#include "demi/train/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "demi/backends/backends.h"
#include "demi/data/tensor_loader.h"
#include "demi/distributed/ranks_testing.h"
#include "demi/optim/adamw.h"
#include "demi/train/precision.h"
#include "demi/train/trainer.h"

namespace demi::train {
namespace {

using demi::testing::on_ranks;
using distributed::ProcessGroup;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using OptimizerToAgreeOn =
    std::function<std::shared_ptr<torch::optim::Optimizer>(const std::vector<at::Tensor>&)>;

template <class Rule, class Options>
OptimizerToAgreeOn agreed(const Options& options) {
  return [=](const std::vector<at::Tensor>& parameters) {
    return std::make_shared<Rule>(parameters, options);
  };
}

// LibTorch's settings are the process's, and the ranks are its threads: what they set while they
// meet each other is put back here.
class Agreement : public ::testing::Test {
 private:
  BackendsGuard settings_{{.cuda_matmul_allow_tf32 = false, .cudnn_allow_tf32 = false}};
};

// What each rank throws if rank 1 trains with `other`.
std::vector<std::string> disagreement(
    const OptimizerToAgreeOn& first, const OptimizerToAgreeOn& other,
    const std::function<void(GradScalerOptions&)>& change = [](GradScalerOptions&) {}) {
  return on_ranks(2, [&](ProcessGroup& group) {
    torch::nn::Linear plane(2, 1);
    TrainerOptions options;
    options.precision = parse_precision("fp16");
    options.loss = Loss::mse;
    options.group = {&group, [](ProcessGroup*) {}};
    options.optimizers = {(group.rank() == 1 ? other : first)(plane->parameters())};
    if (group.rank() == 1) change(options.scaler);
    Trainer trainer(network(plane), options);
    const at::Tensor x = at::ones({4, 2}), y = at::ones({4, 1});
    trainer.fit(data::TensorLoader(x, y, {.batch_size = 2}));
  });
}

const OptimizerToAgreeOn kAgreedSgd = agreed<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
const OptimizerToAgreeOn kAgreedAdamW = agreed<optim::AdamW>(optim::AdamWOptions(0.1));

TEST_F(Agreement, OptimizersThatDifferAreNamed) {
  EXPECT_THAT(disagreement(kAgreedAdamW, kAgreedAdamW), Each(IsEmpty()));
  EXPECT_THAT(disagreement(kAgreedSgd, kAgreedSgd), Each(IsEmpty()));
  EXPECT_THAT(
      disagreement(kAgreedAdamW, agreed<optim::AdamW>(optim::AdamWOptions(0.1).weight_decay(0.5))),
      Each(HasSubstr("optimizer 0, group 0: weight_decay 0.5 on rank 1")));
  EXPECT_THAT(disagreement(kAgreedAdamW, kAgreedSgd),
              Each(HasSubstr("on rank 1; accepted: optimizer 0: ")));
  EXPECT_THAT(disagreement(kAgreedSgd,
                           agreed<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9))),
              Each(HasSubstr("optimizer 0, group 0: options with checksum")));
}

// Scales that move differently would average gradients of different scales.
TEST_F(Agreement, ScalersThatDifferAreNamed) {
  const auto named = [](const char* line) { return Each(HasSubstr(line)); };
  EXPECT_THAT(disagreement(kAgreedSgd, kAgreedSgd, [](auto& o) { o.mode = ScaleMode::kAmax; }),
              named("scaler: mode amax on rank 1; accepted: scaler: mode dynamic"));
  EXPECT_THAT(disagreement(kAgreedSgd, kAgreedSgd, [](auto& o) { o.mode = ScaleMode::kStatic; }),
              named("scaler: mode static on rank 1"));
  EXPECT_THAT(disagreement(kAgreedSgd, kAgreedSgd, [](auto& o) { o.max_scale = 1 << 20; }),
              named("scaler: max_scale 1048576 on rank 1"));
  EXPECT_THAT(disagreement(kAgreedSgd, kAgreedSgd, [](auto& o) { o.skip_nonfinite = false; }),
              named("scaler: skip_nonfinite false on rank 1"));
}

}  // namespace
}  // namespace demi::train
