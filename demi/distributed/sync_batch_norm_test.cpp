#include "demi/distributed/sync_batch_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "demi/distributed/distributed_data_parallel.h"
#include "demi/distributed/process_group.h"
#include "demi/distributed/ranks_testing.h"
#include "demi/recompute/recompute.h"

namespace demi::distributed {
namespace {

using demi::testing::on_ranks;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t kPicturesOfRank = 4;

torch::nn::Sequential normed_net(torch::Dtype dtype) {
  torch::nn::Sequential net(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).bias(false)), torch::nn::BatchNorm2d(4),
      torch::nn::ReLU(), torch::nn::Conv2d(4, 3, 3),
      torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(3).momentum(std::nullopt)),
      torch::nn::Flatten(), torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(12).affine(false)),
      torch::nn::Linear(12, 3));
  const torch::NoGradGuard no_grad;
  double phase = 0;
  for (torch::Tensor& p : net->parameters())
    p.copy_((torch::arange(p.numel(), torch::kDouble) + ++phase).sin().view(p.sizes()) * 0.5);
  net->to(dtype);
  return net;
}

torch::Tensor pictures_of(std::int64_t count, torch::Dtype dtype) {
  const auto all = torch::arange(count * 2 * 36, torch::kDouble);
  return ((all * 0.7).sin() * 3 + 2).view({count, 2, 6, 6}).to(dtype);
}

// Three steps of gradients without updates, so that the running figures move.
void pass(torch::nn::Sequential& net, const torch::Tensor& pictures) {
  for (int step = 0; step < 3; ++step) {
    net->zero_grad();
    net->forward(pictures + step).pow(2).mean().backward();
  }
}

std::vector<torch::Tensor> left_by(torch::nn::Sequential& net) {
  std::vector<torch::Tensor> all;
  for (const torch::Tensor& p : net->parameters()) all.push_back(p.grad().clone());
  for (const torch::Tensor& b : net->buffers()) all.push_back(b.clone());
  return all;
}

// In FP64 the sums of ranks and of one process agree to 1e-12 of the greatest element: 432 terms of
// 2^-53 each, in three normalisations, and a margin of 8 for what they cancel.
TEST(SyncBatchNorm, IsThatOfOneProcessWithAllBatches) {
  for (const int ranks : {2, 3}) {
    torch::nn::Sequential alone = normed_net(torch::kDouble);
    const torch::Tensor pictures = pictures_of(ranks * kPicturesOfRank, torch::kDouble);
    pass(alone, pictures);
    const std::vector<torch::Tensor> expected = left_by(alone);
    std::vector<std::vector<torch::Tensor>> seen(static_cast<std::size_t>(ranks));
    const auto errors = on_ranks(ranks, [&](ProcessGroup& group) {
      torch::nn::Sequential net = normed_net(torch::kDouble);
      EXPECT_EQ(synchronise_batch_norm(*net, group), 3);
      EXPECT_EQ(synchronise_batch_norm(*net, group), 0) << "they are synchronised already";
      const DistributedDataParallel parallel(*net, group, {.broadcast_buffers = false});
      const auto names = net->named_parameters().keys();
      EXPECT_EQ(names, normed_net(torch::kDouble)->named_parameters().keys());
      pass(net,
           pictures.slice(0, group.rank() * kPicturesOfRank, (group.rank() + 1) * kPicturesOfRank));
      seen[static_cast<std::size_t>(group.rank())] = left_by(net);
      net->eval();  // sends nothing
      if (group.rank() == 0) net->forward(pictures);
    });
    ASSERT_THAT(errors, Each(IsEmpty()));
    for (const auto& one : seen) {
      ASSERT_EQ(one.size(), expected.size());
      for (std::size_t i = 0; i < one.size(); ++i) {
        const double greatest = expected[i].abs().max().item<double>();
        // A bias before a normalisation has a gradient of 0, of which rounding is left.
        EXPECT_LE((one[i] - expected[i]).abs().max().item<double>(), 1e-12 * (greatest + 1)) << i;
      }
    }
  }
}

TEST(SyncBatchNorm, KeepsTheDtypeOfTheInput) {
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    torch::nn::Sequential net(torch::nn::BatchNorm2d(2));
    synchronise_batch_norm(*net, group);
    for (const auto dtype : {torch::kBFloat16, torch::kHalf, torch::kFloat}) {
      const torch::Tensor input = pictures_of(4, dtype).requires_grad_();
      const torch::Tensor output = net->forward(input);
      EXPECT_EQ(output.scalar_type(), dtype);
      output.pow(2).sum().backward();
      EXPECT_EQ(input.grad().scalar_type(), dtype);
      // Each channel has a mean of 0 and a variance of 1 over both ranks, which have the same rows:
      // within the dtype's rounding of values of up to 3.
      const double eps = dtype == torch::kBFloat16 ? 0x1p-8 : 0x1p-11;
      EXPECT_NEAR(output.to(torch::kDouble).mean().item<double>(), 0, 3 * eps);
      EXPECT_NEAR(output.to(torch::kDouble).pow(2).mean().item<double>(), 1, 6 * eps);
    }
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

// One rank alone, forward and backward, while the other waits elsewhere.
TEST(SyncBatchNorm, ALocalPassSendsNothing) {
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    torch::nn::Sequential net(torch::nn::BatchNorm2d(2));
    synchronise_batch_norm(*net, group);
    const torch::Tensor input = pictures_of(2, torch::kFloat).requires_grad_();
    if (group.rank() == 1) {
      const LocalBatchNorm local;
      net->forward(input).sum().backward();
    }
    group.barrier();
    net->forward(input).sum().backward();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

// Most C++ modules have members, which cannot be replaced from outside.
struct WithMembers : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return second(first(x).relu()); }
  torch::nn::BatchNorm2d first = register_module("first", torch::nn::BatchNorm2d(2));
  torch::nn::BatchNorm2d second = register_module("second", torch::nn::BatchNorm2d(2));
};

TEST(SyncBatchNorm, OfMembersOfAModule) {
  const torch::Tensor pictures = pictures_of(8, torch::kDouble);
  WithMembers alone;
  alone.to(torch::kDouble);
  const torch::Tensor expected = alone.forward(pictures).detach();
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    WithMembers model;
    model.to(torch::kDouble);
    EXPECT_FALSE(has_synchronised_batch_norm(model));
    EXPECT_EQ(synchronise_batch_norm(model, group), 2);
    EXPECT_TRUE(has_synchronised_batch_norm(model));
    const auto own = pictures.slice(0, group.rank() * 4, group.rank() * 4 + 4);
    const torch::Tensor output = model.forward(own);
    EXPECT_LE((output - expected.slice(0, group.rank() * 4, group.rank() * 4 + 4))
                  .abs()
                  .max()
                  .item<double>(),
              1e-12 * expected.abs().max().item<double>());
    EXPECT_LE((model.second->running_var - alone.second->running_var).abs().max().item<double>(),
              1e-12);
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

// All examples of the step are on the other rank.
/// As those of an imported network: a module of no type, with its buffers.
struct NormOfNoTypeImpl : torch::nn::Module {
  NormOfNoTypeImpl() {
    mean = register_buffer("running_mean", torch::zeros(2));
    variance = register_buffer("running_var", torch::ones(2));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::batch_norm(x, {}, {}, mean, variance, is_training(), 0.1, 1e-5, false);
  }
  torch::Tensor mean, variance;
};
TORCH_MODULE(NormOfNoType);

TEST(SyncBatchNorm, OfAModuleWithoutAType) {
  const torch::Tensor rows =
      torch::tensor({{1.0F, 2.0F}, {3.0F, 8.0F}, {5.0F, 5.0F}, {7.0F, 1.0F}});
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    NormOfNoType norm;
    EXPECT_EQ(synchronise_batch_norm(*norm, group), 1);
    norm->forward(rows.slice(0, 2 * group.rank(), 2 * group.rank() + 2));
    EXPECT_TRUE(norm->mean.allclose(torch::tensor({0.4F, 0.4F}))) << "a tenth of the means of all";
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(SyncBatchNorm, ARankWithoutAnExampleAddsNothing) {
  torch::nn::BatchNorm2d alone(2);
  alone->to(torch::kDouble);
  const torch::Tensor pictures = pictures_of(4, torch::kDouble);
  alone->forward(pictures);
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    torch::nn::BatchNorm2d norm(2);
    norm->to(torch::kDouble);
    synchronise_batch_norm(*norm, group);
    const auto own = group.rank() == 0 ? pictures : pictures.slice(0, 0, 0);
    norm->forward(own).sum().backward();
    EXPECT_LE((norm->running_mean - alone->running_mean).abs().max().item<double>(), 1e-12);
    EXPECT_LE((norm->running_var - alone->running_var).abs().max().item<double>(), 1e-12);
    EXPECT_TRUE(norm->weight.grad().isfinite().all().item<bool>());
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(SyncBatchNorm, NoExampleOnAnyRankMovesNothing) {
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    torch::nn::BatchNorm2d norm(2);
    synchronise_batch_norm(*norm, group);
    const torch::Tensor none = torch::zeros({0, 2, 6, 6}).requires_grad_();
    norm->forward(none).sum().backward();
    EXPECT_TRUE(norm->running_mean.equal(torch::zeros(2))) << norm->running_mean;
    EXPECT_TRUE(norm->running_var.equal(torch::ones(2))) << norm->running_var;
    EXPECT_TRUE(norm->weight.grad().equal(torch::zeros(2)));
    EXPECT_EQ(none.grad().sizes(), none.sizes());
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

// A layer of each rank, and two groups one after the other: of a search for a batch size, say.
TEST(SyncBatchNorm, GoesOverTheGroupThatWasNamedLast) {
  std::vector<torch::nn::Sequential> nets;
  for (int rank = 0; rank < 2; ++rank) nets.emplace_back(torch::nn::BatchNorm2d(2));
  const torch::Tensor pictures = pictures_of(8, torch::kFloat);
  const auto own = [&](ProcessGroup& group) {
    return pictures.slice(0, group.rank() * 4, group.rank() * 4 + 4);
  };
  const auto net_of = [&](ProcessGroup& group) -> torch::nn::Sequential& {
    return nets[static_cast<std::size_t>(group.rank())];
  };
  for (int time = 0; time < 2; ++time) {
    const auto errors = on_ranks(2, [&](ProcessGroup& group) {
      torch::nn::Sequential& net = net_of(group);
      EXPECT_FALSE(has_synchronised_batch_norm(*net)) << "the group before has ended";
      EXPECT_EQ(synchronise_batch_norm(*net, group), 1);
      const torch::Tensor output = net->forward(own(group));
      output.pow(2).sum().backward();
      const torch::Tensor total = output.detach().sum().to(torch::kDouble);
      group.all_reduce(total);
      EXPECT_NEAR(total.item<double>(), 0, 1e-3) << "the mean is that of both ranks";
    });
    EXPECT_THAT(errors, Each(IsEmpty()));
  }
  EXPECT_NEAR(nets[0]->forward(pictures.slice(0, 0, 4)).sum().item<double>(), 0, 1e-3)
      << "alone, after the last group";
}

// The trunk's norm sends in backward. Rank 1 leaves a branch out, so its first bucket is full
// later.
TEST(SyncBatchNorm, GradientsGoInOneOrderWithItOnAllRanks) {
  std::vector<std::vector<torch::Tensor>> seen(2);
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    torch::nn::Linear trunk(6, 5), left(5, 3), right(5, 3);
    torch::nn::BatchNorm1d norm(5);
    torch::nn::Sequential net(trunk, norm, left, right);
    {
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& p : net->parameters())
        p.copy_((torch::arange(p.numel()) * 0.3).sin().view(p.sizes()));
    }
    synchronise_batch_norm(*net, group);
    DistributedOptions options{.broadcast_buffers = false};
    options.bucket_bytes = options.first_bucket_bytes = 8;
    const DistributedDataParallel parallel(*net, group, options);
    const torch::Tensor rows = (torch::arange(24).view({4, 6}) * (1.0 + group.rank())).sin();
    for (int round = 0; round < 3; ++round) {
      net->zero_grad();
      const torch::Tensor hidden = norm->forward(trunk->forward(rows));
      torch::Tensor loss = left->forward(hidden).pow(2).mean();
      if (group.rank() == 0) loss = loss + right->forward(hidden).pow(2).mean();
      loss.backward();
      EXPECT_GT(parallel.last_reduced().buckets, 2);
    }
    for (const torch::Tensor& p : net->parameters())
      seen[static_cast<std::size_t>(group.rank())].push_back(p.grad().clone());
  });
  ASSERT_THAT(errors, Each(IsEmpty()));
  for (std::size_t i = 0; i < seen[0].size(); ++i) EXPECT_TRUE(seen[0][i].equal(seen[1][i])) << i;
}

// Backward runs the block once more, here in another thread than the one that makes the pass.
TEST(SyncBatchNorm, ALocalPassIsOneAlsoWhereItIsRecomputed) {
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    torch::nn::Sequential net(torch::nn::BatchNorm2d(2));
    synchronise_batch_norm(*net, group);
    const torch::Tensor input = pictures_of(2, torch::kFloat).requires_grad_();
    if (group.rank() == 1) {
      torch::Tensor output;
      {
        const LocalBatchNorm local;
        output = demi::recompute([&](const torch::Tensor& x) { return net->forward(x); }, input);
      }
      std::thread([&] { output.pow(3).sum().backward(); }).join();
    }
    group.barrier();
    net->forward(input).sum().backward();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(SyncBatchNorm, OneWithoutRunningStatisticsIsRefused) {
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    torch::nn::Sequential net(
        torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(3).track_running_stats(false)));
    synchronise_batch_norm(*net, group);
  });
  EXPECT_THAT(errors, Each(HasSubstr("0, which keeps no running mean")));
}

}  // namespace
}  // namespace demi::distributed
