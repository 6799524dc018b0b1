// A step of several ranks: what is sent and when, and that all of them take or skip it.
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/lbfgs.h>
#include <torch/types.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "demi/core/error.h"
#include "demi/distributed/distributed_data_parallel.h"
#include "demi/distributed/ranks_testing.h"
#include "demi/loop/step.h"
#include "demi/optim/sgd.h"

namespace demi::loop {
namespace {

using distributed::DistributedDataParallel;
using distributed::ProcessGroup;
using Losses = std::vector<at::Tensor>;

// Weights that are no function of LibTorch's random numbers, which threads share.
torch::nn::Linear make_linear(int64_t in, int64_t out) {
  torch::nn::Linear model(in, out);
  const at::NoGradGuard no_grad;
  for (at::Tensor& p : model->parameters())
    p.copy_((at::arange(p.numel(), at::kDouble) * 0.7).sin().view(p.sizes()) * 0.5);
  return model;
}

at::Tensor rows(int64_t n, int rank) {
  return (at::arange(12, at::kDouble) * 0.9 + static_cast<double>(n) + 10.0 * rank)
      .sin()
      .view({3, 4})
      .to(at::kFloat);
}

void expect_no_error(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(StepOnRanks, SendsAtTheEndOfATurnAlone) {
  expect_no_error(testing::on_ranks(2, [](ProcessGroup& group) {
    auto g = make_linear(4, 4), d = make_linear(4, 1);
    DistributedDataParallel of_g(*g, group), of_d(*d, group);
    optim::SGD sgd_g(g->parameters(), optim::SGDOptions(0.1)),
        sgd_d(d->parameters(), optim::SGDOptions(0.1));
    GradScaler scaler({.init_scale = 64});
    Step step({.models = {{"g", g.get()}, {"d", d.get()}},
               .optimizers = {&sgd_g, &sgd_d},
               .scaler = &scaler,
               .parallel = {&of_g, &of_d}},
              {.accumulate = 2});
    const auto critic = [&](int64_t n) {
      step.batch(Step::Losses([&, n] {
                   const at::Tensor x = rows(n, group.rank());
                   return Losses{(d->forward(g->forward(x).detach()) - d->forward(x)).mean()};
                 }),
                 {.of = {&sgd_d}});
    };
    const auto generator = [&](int64_t n) {
      step.batch(Step::Losses(
          [&, n] { return Losses{-d->forward(g->forward(rows(n, group.rank()))).mean()}; }));
    };
    critic(0);
    EXPECT_EQ(of_d.rounds(), 0);
    critic(1);
    EXPECT_EQ(of_d.rounds(), 1);
    EXPECT_EQ(of_g.rounds(), 0);
    step.take(sgd_d);
    generator(2);
    EXPECT_EQ(of_g.rounds(), 0);
    generator(3);
    EXPECT_TRUE(step.is_due());
    EXPECT_EQ(of_g.rounds(), 1);
    EXPECT_EQ(of_d.rounds(), 1);
    for (const StepResult& result : step.finish()) EXPECT_FALSE(result.skipped());
    group.require_same("the weights", of_g.checksums() + of_d.checksums());
  }));
}

// A graph repeats no hook, so that a step of several ranks runs plainly.
TEST(StepOnRanks, AStepThatMayBeRecordedSendsOnceAllTheSame) {
  expect_no_error(testing::on_ranks(2, [](ProcessGroup& group) {
    auto model = make_linear(4, 1);
    DistributedDataParallel parallel(*model, group);
    optim::SGD sgd(model->parameters(), optim::SGDOptions(0.1));
    const Job job{.models = {model.get()}, .optimizers = {&sgd}, .parallel = {&parallel}};
    EXPECT_THROW(Step(job, {.graph = GraphMode::on}), UsageError);
    Step step(job, {.accumulate = 2, .graph = GraphMode::automatic});
    EXPECT_NE(step.graph_counts().refusal.find("ranks"), std::string::npos);
    for (int64_t n = 0; n < 4; ++n) {
      step.batch(
          {rows(n, group.rank())}, {},
          [&](const Step::Tensors& in) { return model->forward(in[0]); },
          [](const at::Tensor& out, const Step::Tensors&) { return out.square().mean(); });
      EXPECT_EQ(parallel.rounds(), (n + 1) / 2);
      if (step.is_due()) step.finish();
    }
    group.require_same("the weights", parallel.checksums());
  }));
}

TEST(StepOnRanks, AnInfOnOneSkipsOnAll) {
  expect_no_error(testing::on_ranks(2, [](ProcessGroup& group) {
    auto model = make_linear(4, 1);
    DistributedDataParallel parallel(*model, group);
    optim::SGD sgd(model->parameters(), optim::SGDOptions(0.1));
    GradScaler scaler({.init_scale = 64});
    Step step({.models = {model.get()},
               .optimizers = {&sgd},
               .scaler = &scaler,
               .parallel = {&parallel}});
    for (const bool overflows : {true, false}) {
      const double factor = overflows && group.rank() == 1 ? 1e30 : 1;
      step.batch([&] { return model->forward(rows(0, group.rank()) * factor); },
                 [](const at::Tensor& out) { return out.square().mean(); });
      EXPECT_EQ(step.finish().front().skipped(), overflows);
      EXPECT_EQ(scaler.get_scale(), 32);
    }
    group.require_same("the weights", parallel.checksums());
  }));
}

// The average is over the ranks that have a batch: that of rank 0 alone.
TEST(StepOnRanks, ARankWithoutABatchTakesTheStepOfTheOthers) {
  auto alone = make_linear(4, 1);
  optim::SGD plain(alone->parameters(), optim::SGDOptions(0.1));
  plain.set_low_precision_grads(true);
  alone->forward(rows(0, 0)).square().mean().backward();
  plain.step();
  expect_no_error(testing::on_ranks(2, [&](ProcessGroup& group) {
    auto model = make_linear(4, 1);
    DistributedDataParallel parallel(*model, group, {.uneven_batches = true});
    optim::SGD sgd(model->parameters(), optim::SGDOptions(0.1));
    Step step({.models = {model.get()}, .optimizers = {&sgd}, .parallel = {&parallel}});
    if (group.rank() == 0)
      step.batch([&] { return model->forward(rows(0, 0)); },
                 [](const at::Tensor& out) { return out.square().mean(); });
    else
      step.pass();
    EXPECT_TRUE(step.is_due());
    step.finish();
    EXPECT_TRUE(model->weight.equal(alone->weight)) << model->weight << alone->weight;
  }));
}

struct SeenSteps final : StepObserver {
  std::vector<StepMetrics> steps;
  void on_step(const StepMetrics& step, int64_t) override { steps.push_back(step); }
};

// Two batches a step, of which rank 1 has one, and then none: the average is over those that have
// one, and the loss that is reported is that of this rank's batches.
TEST(StepOnRanks, APassIsNoBatch) {
  auto alone = make_linear(4, 1);
  (alone->forward(rows(0, 0)).square().mean() / 2).backward();
  (alone->forward(rows(1, 0)).square().mean() / 2).backward();
  expect_no_error(testing::on_ranks(2, [&](ProcessGroup& group) {
    auto model = make_linear(4, 1);
    DistributedDataParallel parallel(*model, group, {.uneven_batches = true});
    optim::SGD sgd(model->parameters(), optim::SGDOptions(0.1));
    Step step({.models = {model.get()}, .optimizers = {&sgd}, .parallel = {&parallel}},
              {.accumulate = 2, .low_precision_grads = false, .read_every = 1});
    const auto seen = std::make_shared<SeenSteps>();
    step.watch(seen);
    const auto batch = [&](int64_t n) {
      return step
          .batch([&] { return model->forward(rows(n, 0)); },
                 [](const at::Tensor& out) { return out.square().mean(); })
          .item<double>();
    };
    const bool is_first = group.rank() == 0;
    const double first = batch(0);
    const double second = is_first ? batch(1) : 0;
    if (!is_first) step.pass();
    EXPECT_EQ(parallel.last_reduced().ranks, 2);
    step.finish();
    EXPECT_NEAR(seen->steps.at(0).loss, is_first ? (first + second) / 2 : first, 1e-6);
    {
      const at::NoGradGuard no_grad;
      model->weight.copy_(alone->weight);
      model->bias.copy_(alone->bias);
    }
    for (int64_t n = 0; n < 2; ++n) {
      if (is_first)
        batch(n);
      else
        step.pass();
    }
    EXPECT_EQ(parallel.last_reduced().ranks, 1);
    EXPECT_TRUE(model->weight.grad().equal(alone->weight.grad()));
    step.finish();
    EXPECT_EQ(std::isnan(seen->steps.at(1).loss), !is_first);
  }));
}

// Rank 1 leaves the encoder's second layer out, so its buckets fill in another order.
TEST(StepOnRanks, BucketsOfTwoModelsGoInOneOrder) {
  struct Models {
    torch::nn::Linear first = make_linear(4, 4), second = make_linear(4, 4),
                      decoder = make_linear(4, 2);
    torch::nn::Sequential encoder{first, second};
    at::Tensor loss(int64_t n, int rank) {
      at::Tensor hidden = first->forward(rows(n, rank));
      if (rank == 0) hidden = hidden + second->forward(rows(n, rank).tanh());
      return decoder->forward(hidden.tanh()).square().mean();
    }
  };
  Models alone;
  optim::SGD of_encoder(alone.encoder->parameters(), optim::SGDOptions(0.1)),
      of_decoder(alone.decoder->parameters(), optim::SGDOptions(0.1));
  for (int64_t n = 0; n < 4; ++n) {
    ((alone.loss(n, 0) + alone.loss(n, 1)) / 2).backward();
    for (optim::SGD* one : {&of_encoder, &of_decoder}) {
      one->step();
      one->zero_grad();
    }
  }
  expect_no_error(testing::on_ranks(2, [&](ProcessGroup& group) {
    Models m;
    const distributed::DistributedOptions small{.bucket_bytes = 8, .first_bucket_bytes = 8};
    DistributedDataParallel encoder(*m.encoder, group, small), decoder(*m.decoder, group, small);
    optim::SGD sgd_e(m.encoder->parameters(), optim::SGDOptions(0.1)),
        sgd_d(m.decoder->parameters(), optim::SGDOptions(0.1));
    Step step({.models = {{"encoder", m.encoder.ptr().get()}, {"decoder", m.decoder.get()}},
               .optimizers = {&sgd_e, &sgd_d},
               .parallel = {&encoder, &decoder}});
    for (int64_t n = 0; n < 4; ++n) {
      step.batch(Step::Losses([&, n] { return Losses{m.loss(n, group.rank())}; }));
      step.finish();
    }
    group.require_same("the weights", encoder.checksums() + decoder.checksums());
    EXPECT_TRUE(m.second->weight.allclose(alone.second->weight, 1e-4, 1e-6));
    EXPECT_TRUE(m.decoder->weight.allclose(alone.decoder->weight, 1e-4, 1e-6));
  }));
}

torch::optim::LBFGSOptions line_search() {
  return torch::optim::LBFGSOptions(1.0).max_iter(4).line_search_fn("strong_wolfe");
}

// LBFGS ends its line search by the loss: one that each rank has for itself ends it on one earlier.
// The truth: one process with the mean of both losses.
TEST(StepOnRanks, AnOptimizerWithAClosureTakesTheSameTurnsOnAll) {
  const auto loss_of = [](torch::nn::Linear& model, int64_t n, int rank) {
    return ((model->forward(rows(n, rank)) - (2.0 + 40 * rank)).square() * (1.0 + 9 * rank)).mean();
  };
  auto alone = make_linear(4, 1);
  torch::optim::LBFGS of_alone(alone->parameters(), line_search());
  for (int64_t n = 0; n < 3; ++n)
    of_alone.step([&] {
      of_alone.zero_grad();
      const at::Tensor loss = (loss_of(alone, n, 0) + loss_of(alone, n, 1)) / 2;
      loss.backward();
      return loss;
    });
  for (const bool scales : {false, true}) {
    expect_no_error(testing::on_ranks(2, [&](ProcessGroup& group) {
      auto model = make_linear(4, 1);
      DistributedDataParallel parallel(*model, group);
      torch::optim::LBFGS lbfgs(model->parameters(), line_search());
      GradScaler scaler({.init_scale = 64, .enabled = scales});
      Step step({.models = {model.get()},
                 .optimizers = {&lbfgs},
                 .scaler = &scaler,
                 .parallel = {&parallel}});
      for (int64_t n = 0; n < 3; ++n) {
        int64_t evaluations = 0;
        const StepResult result = step.take(
            lbfgs, [&, n] { return ++evaluations, loss_of(model, n, group.rank()); },
            [](const at::Tensor& loss) { return loss; });
        step.finish();
        EXPECT_FALSE(result.skipped());
        group.require_same("the turns", c10::str(evaluations, " evaluations, loss ",
                                                 result.loss().item<double>()));
        group.require_same("the weights", parallel.checksums());
      }
      EXPECT_TRUE(model->weight.allclose(alone->weight, 1e-4, 1e-5))
          << model->weight << alone->weight;
    }));
  }
}

}  // namespace
}  // namespace demi::loop
