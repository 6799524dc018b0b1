#include "demi/train/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "demi/autocast/op_policy.h"
#include "demi/data/tensor_loader.h"
#include "demi/optim/adamw.h"
#include "demi/schedule/lr_schedule.h"
#include "demi/train/names.h"
#include "demi/train/on_ranks_testing.h"
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

class Agreement : public testing::OnRanks {};

using ChangeOfOptions = std::function<void(TrainerOptions&)>;

// The arguments of rank 1. Rank 0 trains on four rows, without a validation.
struct RankOne {
  OptimizerToAgreeOn optimizer;
  ChangeOfOptions change = [](TrainerOptions&) {};
  int64_t rows = 4;
  bool validates = false;
};

// The error of each rank.
std::vector<std::string> disagreement(
    const OptimizerToAgreeOn& first, const RankOne& other,
    const ChangeOfOptions& of_both = [](TrainerOptions&) {}) {
  return on_ranks(2, [&](ProcessGroup& group) {
    const bool is_other = group.rank() == 1;
    torch::nn::Linear plane(2, 1);
    TrainerOptions options;
    options.precision = parse_precision("fp16");
    options.loss = Loss::mse;
    options.group = testing::shared_group(group);
    options.optimizers = {(is_other ? other.optimizer : first)(plane->parameters())};
    of_both(options);
    if (is_other) other.change(options);
    Trainer trainer(network(plane), options);
    const int64_t rows = is_other ? other.rows : 4;
    const at::Tensor x = at::ones({2 * rows, 2}), y = at::ones({2 * rows, 1});
    const data::TensorLoader loader(x, y, {.batch_size = 2, .rank = group.rank(), .world_size = 2});
    trainer.fit(loader, is_other && other.validates ? &loader : nullptr);
  });
}

const OptimizerToAgreeOn kAgreedSgd = agreed<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
const OptimizerToAgreeOn kAgreedAdamW = agreed<optim::AdamW>(optim::AdamWOptions(0.1));

TEST_F(Agreement, OptimizersThatDifferAreNamed) {
  EXPECT_THAT(disagreement(kAgreedAdamW, {kAgreedAdamW}), Each(IsEmpty()));
  EXPECT_THAT(disagreement(kAgreedSgd, {kAgreedSgd}), Each(IsEmpty()));
  const auto decays = agreed<optim::AdamW>(optim::AdamWOptions(0.1).weight_decay(0.5));
  EXPECT_THAT(disagreement(kAgreedAdamW, {decays}),
              Each(HasSubstr("optimizer 0, group 0: weight_decay 0.5 on rank 1")));
  EXPECT_THAT(disagreement(kAgreedAdamW, {kAgreedSgd}),
              Each(HasSubstr("on rank 1; accepted: optimizer 0: ")));
  const auto with_momentum = agreed<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
  EXPECT_THAT(disagreement(kAgreedSgd, {with_momentum}),
              Each(HasSubstr("optimizer 0, group 0: options with checksum")));
  const auto with_rates = [](std::vector<double> rates) -> OptimizerToAgreeOn {
    return [rates](const std::vector<at::Tensor>& parameters) {
      auto adamw = std::make_shared<optim::AdamW>(parameters, optim::AdamWOptions(0.1));
      adamw->set_scheduled_rates(0, rates);
      return adamw;
    };
  };
  EXPECT_THAT(disagreement(with_rates({0.1, 0.2}), {with_rates({0.1, 0.2})}), Each(IsEmpty()));
  EXPECT_THAT(disagreement(with_rates({0.1, 0.2}), {with_rates({0.1, 0.3})}),
              Each(HasSubstr("optimizer 0, group 0: 2 scheduled rates with checksum")));
  const OptimizerToAgreeOn of_weight = [](const std::vector<at::Tensor>& parameters) {
    return std::make_shared<optim::AdamW>(std::vector<at::Tensor>{parameters.front()},
                                          optim::AdamWOptions(0.1));
  };
  EXPECT_THAT(disagreement(kAgreedAdamW, {of_weight}),
              Each(HasSubstr("optimizer 0, group 0: 1 parameters on rank 1")));
}

// Scales that move differently would average gradients of different scales. Each option by itself,
// with the line that names it.
TEST_F(Agreement, ScalersThatDifferAreNamed) {
  const std::vector<std::pair<const char*, std::function<void(GradScalerOptions&)>>> cases{
      {"mode amax", [](auto& o) { o.mode = ScaleMode::kAmax; }},
      {"mode static", [](auto& o) { o.mode = ScaleMode::kStatic; }},
      {"skip_nonfinite false", [](auto& o) { o.skip_nonfinite = false; }},
      {"min_scale 0.5", [](auto& o) { o.min_scale = 0.5; }},
      {"max_scale 1048576", [](auto& o) { o.max_scale = 1 << 20; }},
      {"hysteresis 3", [](auto& o) { o.hysteresis = 3; }},
      {"refill_hysteresis true", [](auto& o) { o.refill_hysteresis = true; }},
      {"amax_window 7", [](auto& o) { o.amax_window = 7; }},
      {"amax_limit 512", [](auto& o) { o.amax_limit = 512; }},
      {"scale 1024", [](auto& o) { o.init_scale = 1024; }},
      {"growth_factor 4", [](auto& o) { o.growth_factor = 4; }},
      {"backoff_factor 0.25", [](auto& o) { o.backoff_factor = 0.25; }},
      {"growth_interval 7", [](auto& o) { o.growth_interval = 7; }}};
  for (const auto& [line, change] : cases)
    EXPECT_THAT(disagreement(kAgreedSgd,
                             {kAgreedSgd, [&set = change](TrainerOptions& o) { set(o.scaler); }}),
                Each(HasSubstr(std::string("scaler: ") + line + " on rank 1; accepted: scaler: ")));
  const ChangeOfOptions off = [](TrainerOptions& o) { o.loss_scale = parse_loss_scale("off"); };
  EXPECT_THAT(disagreement(kAgreedSgd, {kAgreedSgd, off}),
              Each(HasSubstr("scaler: enabled false on rank 1; accepted: scaler: enabled true")));
}

// Each option by itself. Ranks that differ in one of them train different weights, or wait for each
// other in different collectives.
TEST_F(Agreement, OptionsThatDifferAreNamed) {
  const std::vector<std::pair<const char*, ChangeOfOptions>> cases{
      {"epochs 2", [](auto& o) { o.epochs = 2; }},
      {"max_steps 1", [](auto& o) { o.max_steps = 1; }},
      {"precision bf16", [](auto& o) { o.precision = parse_precision("bf16"); }},
      {"autocast false", [](auto& o) { o.autocast = false; }},
      {"label_smoothing 0.5",
       [](auto& o) {
         o.label_smoothing = 0.5;
         o.loss = Loss::cross_entropy;
       }},
      {"clip_norm 2", [](auto& o) { o.clip_norm = 2; }},
      {"accumulate 2", [](auto& o) { o.accumulate = 2; }},
      {"ema_decay 0.5", [](auto& o) { o.ema_decay = 0.5; }},
      {"early_stopping 3", [](auto& o) { o.early_stopping = 3; }},
      {"read_every 3", [](auto& o) { o.read_every = 3; }},
      {"best_by 2", [](auto& o) { o.best_by = BestBy::loss; }},
      {"give_up_after 7", [](auto& o) { o.give_up_after = 7; }},
      {"optimizers 2", [](auto& o) { o.optimizers.push_back(o.optimizers.front()); }},
      {"schedule given", [](auto& o) { o.schedule = optim::lr::cosine(20); }},
      {"momentum_schedule given", [](auto& o) { o.momentum_schedule = optim::lr::cosine(20); }},
      {"losses given",
       [](auto& o) {
         o.losses = [](const Network& network, const data::Batch& batch) {
           return std::vector<at::Tensor>{network.forward(batch).sum()};
         };
       }},
      {"flush_subnormals false", [](auto& o) { o.flush_subnormals = false; }},
      {"op_policy given", [](auto& o) { o.op_policy = OpPolicy::named("fp32_softmax"); }},
      {"learning rate 0.5", [](auto& o) {
         o.optimizers = {std::make_shared<torch::optim::SGD>(
             o.optimizers.front()->param_groups().front().params(), 0.5)};
       }}};
  for (const auto& [line, change] : cases)
    EXPECT_THAT(disagreement(kAgreedSgd, {kAgreedSgd, change}),
                Each(HasSubstr(std::string("on the training; seen: ") + line + " on rank 1")));
}

// Policies of which both ranks have one, and the data.
TEST_F(Agreement, PoliciesAndDataThatDifferAreNamed) {
  const auto policy = [](const char* op, const char* part) {
    return [=](TrainerOptions& o) {
      o.op_policy = OpPolicy().set(op, OpCategory::fp32).keep_part_in_fp32(part);
    };
  };
  const ChangeOfOptions both = policy("softmax.int", "head");
  EXPECT_THAT(disagreement(kAgreedSgd, {kAgreedSgd, policy("softmax.int", "head")}, both),
              Each(IsEmpty()));
  EXPECT_THAT(disagreement(kAgreedSgd, {kAgreedSgd, policy("log_softmax.int", "head")}, both),
              Each(HasSubstr(
                  "op_policy: log_softmax.int fp32 on rank 1; accepted: op_policy: softmax.int")));
  EXPECT_THAT(
      disagreement(kAgreedSgd, {kAgreedSgd, policy("softmax.int", "norm")}, both),
      Each(HasSubstr("op_policy: part norm fp32 on rank 1; accepted: op_policy: part head")));
  EXPECT_THAT(disagreement(kAgreedSgd, {.optimizer = kAgreedSgd, .rows = 6}),
              Each(HasSubstr("3 batches of training on rank 1; accepted: 2 batches of training")));
  EXPECT_THAT(disagreement(kAgreedSgd, {.optimizer = kAgreedSgd, .rows = 3}),
              Each(HasSubstr("6 examples of training on rank 1")));
  EXPECT_THAT(disagreement(kAgreedSgd, {.optimizer = kAgreedSgd, .validates = true}),
              Each(HasSubstr("validation on 8 examples on rank 1; accepted: validation none")));
}

}  // namespace
}  // namespace demi::train
