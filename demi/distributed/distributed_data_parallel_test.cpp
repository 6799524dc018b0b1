#include "demi/distributed/distributed_data_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "demi/autocast/autocast.h"
#include "demi/core/error.h"
#include "demi/distributed/process_group.h"
#include "demi/distributed/ranks_testing.h"
#include "demi/optim/adamw.h"
#include "demi/optim/clip.h"
#include "demi/optim/sgd.h"
#include "demi/scaler/grad_scaler.h"

namespace demi::distributed {
namespace {

using demi::testing::on_ranks;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two branches, so that a rank can leave one out; the third is never used.
struct Net : torch::nn::Module {
  torch::nn::Linear in = register_module("in", torch::nn::Linear(12, 16));
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear left = register_module("left", torch::nn::Linear(16, 5));
  torch::nn::Linear right = register_module("right", torch::nn::Linear(16, 5));
  torch::nn::Linear never = register_module("never", torch::nn::Linear(3, 3));

  explicit Net(bool with_norm = false) {
    if (with_norm) norm = register_module("norm", torch::nn::BatchNorm1d(16));
  }
  torch::Tensor forward(const torch::Tensor& inputs, bool use_right = true) {
    torch::Tensor hidden = in->forward(inputs);
    if (norm) hidden = norm->forward(hidden);
    hidden = torch::tanh(hidden);
    const torch::Tensor output = left->forward(hidden);
    return use_right ? output + right->forward(hidden) : output;
  }
};

// The same for every rank and run: threads share LibTorch's generator.
torch::Tensor numbers(std::int64_t rows, std::int64_t columns, double phase) {
  const auto all = torch::arange(rows * columns, torch::kFloat64).view({rows, columns});
  return torch::sin(all * 0.7 + phase).to(torch::kFloat);
}

void fill(torch::nn::Module& model, double phase = 0) {
  const torch::NoGradGuard no_grad;
  for (auto& p : model.parameters())
    p.copy_(numbers(p.numel(), 1, phase += 1).view(p.sizes()) * 0.3);
}

torch::Tensor loss_of(const torch::Tensor& output, const torch::Tensor& targets) {
  return torch::mse_loss(output.to(torch::kFloat), targets);
}

using Gradients = std::map<std::string, torch::Tensor>;

Gradients gradients_of(const torch::nn::Module& model) {
  Gradients all;
  for (const auto& p : model.named_parameters())
    if (p.value().grad().defined()) all[p.key()] = p.value().grad().clone();
  return all;
}

// The gradients that one process computes for these rows.
Gradients reference(const torch::Tensor& inputs, const torch::Tensor& targets) {
  Net model;
  fill(model);
  loss_of(model.forward(inputs), targets).backward();
  return gradients_of(model);
}

// Results of the ranks, which are threads.
template <class T>
class ByRank {
 public:
  explicit ByRank(int count) : all_(static_cast<size_t>(count)) {}
  T& operator[](int rank) { return all_[static_cast<size_t>(rank)]; }

 private:
  std::vector<T> all_;
};

void expect_same_bits(const Gradients& a, const Gradients& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, gradient] : a) {
    EXPECT_EQ(gradient.scalar_type(), b.at(name).scalar_type()) << name;
    EXPECT_TRUE(torch::equal(gradient, b.at(name))) << name;
  }
}

class NumberOfRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(DistributedDataParallel, NumberOfRanks, ::testing::Values(2, 3, 4));

// The bound: the gradient is the mean of those of the single rows, g_i, so a sum of so many terms
// in any order has |error| <= terms eps sum |g_i| / rows; a row's own is some 20 roundings away.
TEST_P(NumberOfRanks, GradientsAreThoseOfOneRankWithAllBatches) {
  const int n = GetParam();
  constexpr std::int64_t kRows = 6;
  const auto inputs = numbers(n * kRows, 12, 1), targets = numbers(n * kRows, 5, 2);
  ByRank<Gradients> first(n), second(n);
  std::vector<Gradients> own;  // of each row
  for (std::int64_t row = 0; row < n * kRows; ++row)
    own.push_back(reference(inputs.narrow(0, row, 1), targets.narrow(0, row, 1)));
  const auto errors = on_ranks(n, [&](ProcessGroup& group) {
    Net model;
    fill(model, group.rank());  // rank 0's weights reach all
    DistributedOptions options;
    options.bucket_bytes = options.first_bucket_bytes = 256;  // several buckets
    DistributedDataParallel parallel(model, group, options);
    const auto x = inputs.narrow(0, group.rank() * kRows, kRows);
    const auto y = targets.narrow(0, group.rank() * kRows, kRows);
    loss_of(model.forward(x), y).backward();
    first[group.rank()] = gradients_of(model);
    EXPECT_TRUE(parallel.last_reduced().planned);
    EXPECT_GT(parallel.last_reduced().buckets, 2);
    EXPECT_EQ(parallel.last_reduced().ranks, n);
    model.zero_grad();
    loss_of(model.forward(x), y).backward();  // while backward runs
    EXPECT_FALSE(parallel.last_reduced().planned);
    second[group.rank()] = gradients_of(model);
  });
  ASSERT_THAT(errors, Each(IsEmpty()));
  const Gradients whole = reference(inputs, targets);
  ASSERT_EQ(first[0].size(), whole.size());  // none for the branch that nobody uses
  for (const auto& [name, expected] : whole) {
    auto bound = torch::zeros_like(expected);
    for (const Gradients& row : own) bound += row.at(name).abs() / (n * kRows);
    bound *= (n + n * kRows + 20) * std::numeric_limits<float>::epsilon();
    EXPECT_TRUE(((first[0].at(name) - expected).abs() <= bound).all().item<bool>()) << name;
  }
  for (int rank = 0; rank < n; ++rank) {
    expect_same_bits(first[rank], first[0]);
    expect_same_bits(second[rank], first[0]);
  }
}

// With two ranks the order of the sum changes no bit: half of each, added and rounded once.
TEST(DistributedDataParallel, SixteenBitGradientsTravelAsTheyAre) {
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    const auto inputs = numbers(8, 12, 1), targets = numbers(8, 5, 2);
    ByRank<Gradients> own(2), averaged(2);
    ByRank<std::int64_t> bytes(2);
    const auto errors = on_ranks(2, [&](ProcessGroup& group) {
      const auto x = inputs.narrow(0, group.rank() * 4, 4);
      const auto y = targets.narrow(0, group.rank() * 4, 4);
      const auto backward = [&](Net& model) {
        torch::Tensor output;
        {
          const Autocast region(torch::kCPU, dtype);
          output = model.forward(x);
        }
        loss_of(output, y).backward();
      };
      Net alone, model;
      fill(alone);
      fill(model);
      const optim::StepOptions narrow{.low_precision_grads = true};
      optim::SGD of_alone(alone.parameters(), 0.1, narrow),
          optimizer(model.parameters(), 0.1, narrow);
      backward(alone);
      own[group.rank()] = gradients_of(alone);
      const DistributedDataParallel parallel(model, group);
      for (int step = 0; step < 2; ++step) {
        model.zero_grad();
        backward(model);
        EXPECT_EQ(parallel.last_reduced().planned, step == 0);
      }
      averaged[group.rank()] = gradients_of(model);
      bytes[group.rank()] = parallel.last_reduced().bytes;
    });
    ASSERT_THAT(errors, Each(IsEmpty()));
    // A processor without instructions for 16-bit products makes a weight's gradient in fp32.
    std::int64_t own_bytes = 0;
    for (const auto& [name, gradient] : own[0]) {
      ASSERT_EQ(averaged[0].at(name).scalar_type(), gradient.scalar_type()) << name;
      EXPECT_TRUE(torch::equal(averaged[0].at(name), gradient / 2 + own[1].at(name) / 2)) << name;
      own_bytes += gradient.numel() * gradient.element_size();
    }
    EXPECT_EQ(own[0].at("in.bias").scalar_type(), dtype);
    expect_same_bits(averaged[0], averaged[1]);
    // `never`, 12 numbers, has no gradient and counts as fp32; then the flags.
    EXPECT_GE(bytes[0], own_bytes);
    EXPECT_LE(bytes[0], own_bytes + 12 * 4 + 14 * 4);
  }
}

TEST(DistributedDataParallel, SixteenBitGradientsAddedUpInFp32) {
  ByRank<Gradients> averaged(3);
  const auto gradient_of = [](int rank, const torch::Tensor& p) {
    return (numbers(p.numel(), 1, rank).view(p.sizes())).to(torch::kBFloat16);
  };
  const auto errors = on_ranks(3, [&](ProcessGroup& group) {
    Net model;
    fill(model);
    model.to(torch::kBFloat16);
    DistributedOptions options;
    options.gradient_dtype = torch::kFloat;
    const DistributedDataParallel parallel(model, group, options);
    torch::Tensor sum = torch::zeros({}, torch::kFloat);
    for (auto& p : model.parameters())
      sum = sum + (p.to(torch::kFloat) * gradient_of(group.rank(), p).to(torch::kFloat)).sum();
    sum.backward();
    averaged[group.rank()] = gradients_of(model);
  });
  ASSERT_THAT(errors, Each(IsEmpty()));
  const Net model;
  for (const auto& p : model.named_parameters()) {
    auto exact = torch::zeros(p.value().sizes(), torch::kFloat64);
    for (int rank = 0; rank < 3; ++rank)
      exact += gradient_of(rank, p.value()).to(torch::kFloat64) / 3;
    const auto got = averaged[1].at(p.key());
    ASSERT_EQ(got.scalar_type(), torch::kBFloat16);
    // Rounded once, as the exact average is, but for ties that fp32 decides otherwise.
    EXPECT_LE((got != exact.to(torch::kBFloat16)).sum().item<std::int64_t>(), 1) << p.key();
  }
}

// fp16: one rank's Inf. The others' gradients are finite, and they skip the same step.
TEST(DistributedDataParallel, OverflowOnOneRankSkipsTheStepOnAll) {
  constexpr int kRanks = 3, kSteps = 4;
  struct Seen {
    std::vector<bool> skipped;
    std::vector<float> scales;
    std::vector<double> norms;
    std::vector<torch::Tensor> weights;
  };
  ByRank<Seen> seen(kRanks);
  const auto errors = on_ranks(kRanks, [&](ProcessGroup& group) {
    Net model;
    fill(model);
    DistributedDataParallel parallel(model, group);
    optim::AdamW optimizer(model.parameters(), optim::AdamWOptions(1e-2));
    GradScalerOptions options;
    options.init_scale = 1024;
    GradScaler scaler(options);
    Seen& mine = seen[group.rank()];
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      torch::Tensor output;
      {
        const Autocast region(torch::kCPU, torch::kHalf);
        output = model.forward(numbers(4, 12, group.rank()));
      }
      auto loss = loss_of(output, numbers(4, 5, 3));
      if (step == 2 && group.rank() == 1) loss = loss * 1e6;  // 65,504 is fp16's greatest
      scaler.scale(loss).backward();
      scaler.unscale_(optimizer);
      optim::clip_grad_norm_(model.parameters(), 1.0);
      const StepResult result = scaler.step(optimizer);
      scaler.update();
      mine.skipped.push_back(result.skipped());
      mine.scales.push_back(scaler.get_scale());
      if (!result.skipped()) mine.norms.push_back(result.grad_norm().value());
      mine.weights.push_back(model.in->weight.detach().clone());
    }
  });
  ASSERT_THAT(errors, Each(IsEmpty()));
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(seen[rank].skipped, (std::vector<bool>{false, false, true, false})) << rank;
    EXPECT_EQ(seen[rank].scales, (std::vector<float>{1024, 1024, 512, 512})) << rank;
    EXPECT_EQ(seen[rank].norms, seen[0].norms);
    for (int step = 0; step < kSteps; ++step)
      EXPECT_TRUE(torch::equal(seen[rank].weights[static_cast<size_t>(step)],
                               seen[0].weights[static_cast<size_t>(step)]));
    EXPECT_TRUE(torch::equal(seen[rank].weights[1], seen[rank].weights[2]));
  }
}

TEST(DistributedDataParallel, AccumulatesWithoutSending) {
  const auto inputs = numbers(16, 12, 1), targets = numbers(16, 5, 2);
  ByRank<Gradients> averaged(2);
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    Net model;
    fill(model);
    DistributedDataParallel parallel(model, group);
    const auto part = [&](int micro) { return group.rank() * 8 + micro * 4; };
    {
      const auto no_sync = parallel.no_sync();
      (loss_of(model.forward(inputs.narrow(0, part(0), 4)), targets.narrow(0, part(0), 4)) / 2)
          .backward();
    }
    EXPECT_EQ(parallel.last_reduced().buckets, 0);
    // The second micro-batch leaves a branch out; its gradient of the first is averaged all the
    // same.
    (loss_of(model.forward(inputs.narrow(0, part(1), 4), false), targets.narrow(0, part(1), 4)) / 2)
        .backward();
    EXPECT_GT(parallel.last_reduced().buckets, 0);
    averaged[group.rank()] = gradients_of(model);
  });
  ASSERT_THAT(errors, Each(IsEmpty()));
  expect_same_bits(averaged[0], averaged[1]);
  Net model;
  fill(model);
  for (int rank = 0; rank < 2; ++rank)
    for (int micro = 0; micro < 2; ++micro) {
      const int begin = rank * 8 + micro * 4;
      (loss_of(model.forward(inputs.narrow(0, begin, 4), micro == 0), targets.narrow(0, begin, 4)) /
       4)
          .backward();
    }
  for (const auto& [name, expected] : gradients_of(model))
    EXPECT_TRUE(torch::allclose(averaged[0].at(name), expected, 1e-5, 1e-7)) << name;
}

// Used on one rank: the others count as 0. Used on none: no gradient. A second backward on top of
// the averages adds the average of the second.
TEST(DistributedDataParallel, UnusedParameters) {
  ByRank<Gradients> once(3), twice(3);
  const auto errors = on_ranks(3, [&](ProcessGroup& group) {
    Net model;
    fill(model);
    const DistributedDataParallel parallel(model, group);
    const auto backward = [&] {
      loss_of(model.forward(numbers(4, 12, 1), group.rank() == 2), numbers(4, 5, 2)).backward();
    };
    backward();
    once[group.rank()] = gradients_of(model);
    backward();
    twice[group.rank()] = gradients_of(model);
  });
  ASSERT_THAT(errors, Each(IsEmpty()));
  Net model;
  fill(model);
  loss_of(model.forward(numbers(4, 12, 1), true), numbers(4, 5, 2)).backward();
  for (int rank = 0; rank < 3; ++rank) {
    expect_same_bits(once[rank], once[0]);
    expect_same_bits(twice[rank], twice[0]);
    EXPECT_FALSE(once[rank].contains("never.weight"));
    const auto expected = model.right->weight.grad() / 3;
    EXPECT_TRUE(torch::equal(once[rank].at("right.weight"), expected));
    EXPECT_TRUE(torch::allclose(twice[rank].at("right.weight"), 2 * expected, 1e-6, 0));
  }
}

TEST(DistributedDataParallel, AnUnusedParameterKeepsItsGradient) {
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    Net model;
    fill(model);
    DistributedDataParallel parallel(model, group);
    const auto own = torch::full({3, 3}, group.rank(), torch::kFloat);
    model.never->weight.mutable_grad() = own.clone();
    const auto of_right = torch::full({5, 16}, group.rank(), torch::kFloat);
    for (const bool accumulates : {true, false, false}) {
      if (accumulates) {
        const auto no_sync = parallel.no_sync();
        loss_of(model.forward(numbers(4, 12, 1), true), numbers(4, 5, 2)).backward();
      }
      if (!accumulates) model.right->weight.mutable_grad() = of_right.clone();
      loss_of(model.forward(numbers(4, 12, 1), false), numbers(4, 5, 2)).backward();
      EXPECT_TRUE(torch::equal(model.never->weight.grad(), own));
      EXPECT_EQ(torch::equal(model.right->weight.grad(), of_right), !accumulates);
    }
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

// bf16 gradients on rank 0, fp32 on rank 1: fp32 on both, with the same bits.
TEST(DistributedDataParallel, RanksWithDifferentDtypes) {
  std::vector<torch::Tensor> own(2), averaged(2);
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    const auto rank = static_cast<size_t>(group.rank());
    Net model;
    fill(model);
    const optim::SGD optimizer(model.parameters(), 0.1, {.low_precision_grads = true});
    const auto backward = [&] {
      model.zero_grad();
      torch::Tensor output;
      {
        const Autocast region(torch::kCPU, {.dtype = torch::kBFloat16, .enabled = rank == 0});
        output = model.forward(numbers(4, 12, group.rank()));
      }
      loss_of(output, numbers(4, 5, 2)).backward();
    };
    backward();
    own[rank] = model.in->bias.grad().clone();
    const DistributedDataParallel parallel(model, group);
    for (int step = 0; step < 3; ++step) {
      backward();
      EXPECT_EQ(parallel.last_reduced().planned, step == 0);
    }
    averaged[rank] = model.in->bias.grad().clone();
  });
  ASSERT_THAT(errors, Each(IsEmpty()));
  ASSERT_EQ(own[0].scalar_type(), torch::kBFloat16);
  for (const auto& one : averaged) {
    ASSERT_EQ(one.scalar_type(), torch::kFloat);
    EXPECT_TRUE(torch::equal(one, own[0].to(torch::kFloat) / 2 + own[1] / 2));
  }
}

// The only bucket is full long before backward ends. It waits all the same, for the flags that say
// whether the plan fits: in the third step it does not fit rank 1, and only that rank knows.
TEST(DistributedDataParallel, TheLastBucketWaitsForTheFlags) {
  std::vector<std::vector<bool>> planned(2);
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    torch::nn::Linear model(12, 5);
    const DistributedDataParallel parallel(*model, group);
    const optim::SGD optimizer(model->parameters(), 0.1, {.low_precision_grads = true});
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      // The time that backward continues after the model's last gradient: a bucket that did not
      // wait would be sent by then.
      const torch::Tensor input = numbers(4, 12, group.rank()).requires_grad_() * 2;
      input.register_hook([](const torch::Tensor&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
      });
      torch::Tensor output;
      {
        const bool in_bf16 = step < 2 || group.rank() == 0;
        const Autocast region(torch::kCPU, {.dtype = torch::kBFloat16, .enabled = in_bf16});
        output = model->forward(input);
      }
      loss_of(output, numbers(4, 5, 2)).backward();
      planned[static_cast<size_t>(group.rank())].push_back(parallel.last_reduced().planned);
    }
  });
  ASSERT_THAT(errors, Each(IsEmpty()));
  EXPECT_THAT(planned, Each(std::vector<bool>{true, false, true}));
}

struct Throws : torch::autograd::Function<Throws> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw std::runtime_error("in backward");
  }
};

TEST(DistributedDataParallel, ABackwardThatFailedIsNotForgotten) {
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    torch::nn::Linear first(4, 4), last(4, 4);
    torch::nn::Sequential model(first, last);
    const DistributedDataParallel parallel(*model, group);
    const auto hidden = first->forward(numbers(2, 4, 1));
    EXPECT_THROW(last->forward(Throws::apply(hidden)).sum().backward(), std::runtime_error);
    last->forward(hidden).sum().backward();
  });
  EXPECT_THAT(errors, Each(HasSubstr("an earlier backward failed")));
}

// Its first buckets are on their way when it fails: a round that began anew would write into them.
TEST(DistributedDataParallel, NoRoundBeginsAfterABackwardThatFailed) {
  for (const bool joins : {false, true}) {
    const auto errors = on_ranks(2, [&](ProcessGroup& group) {
      torch::nn::Linear first(4, 4), last(4, 4);
      torch::nn::Sequential model(first, last);
      DistributedOptions options;
      options.bucket_bytes = options.first_bucket_bytes = 8;
      options.uneven_batches = joins;
      DistributedDataParallel parallel(*model, group, options);
      const auto hidden = first->forward(numbers(2, 4, 1));
      last->forward(hidden).sum().backward();  // plans the buckets
      EXPECT_THROW(last->forward(Throws::apply(hidden)).sum().backward(), std::runtime_error);
      joins ? parallel.join([] {}) : parallel.reduce();
    });
    EXPECT_THAT(errors, Each(HasSubstr("an earlier backward failed"))) << joins;
  }
}

// fp32, then bf16, then fp32 gradients: all ranks plan anew when the dtypes change, and only then.
TEST(DistributedDataParallel, PlansAnewWhereADtypeHasChanged) {
  std::vector<std::vector<bool>> planned(2);
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    Net model;
    fill(model);
    const DistributedDataParallel parallel(model, group);
    const optim::SGD optimizer(model.parameters(), 0.1, {.low_precision_grads = true});
    for (const bool in_bf16 : {false, false, true, true, false, false}) {
      model.zero_grad();
      torch::Tensor output;
      {
        const Autocast region(torch::kCPU, {.dtype = torch::kBFloat16, .enabled = in_bf16});
        output = model.forward(numbers(4, 12, group.rank()));
      }
      loss_of(output, numbers(4, 5, 2)).backward();
      planned[static_cast<size_t>(group.rank())].push_back(parallel.last_reduced().planned);
      EXPECT_EQ(model.in->bias.grad().scalar_type(), in_bf16 ? torch::kBFloat16 : torch::kFloat);
    }
  });
  ASSERT_THAT(errors, Each(IsEmpty()));
  EXPECT_THAT(planned, Each(std::vector<bool>{true, false, true, false, true, false}));
}

TEST(DistributedDataParallel, ALayerThatWasFrozenIsAveragedFromThenOn) {
  ByRank<Gradients> frozen(2), thawed(2);
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    Net model;
    fill(model);
    for (auto& p : model.in->parameters()) p.set_requires_grad(false);
    const DistributedDataParallel parallel(model, group);
    const auto backward = [&] {
      model.zero_grad();
      loss_of(model.forward(numbers(4, 12, group.rank())), numbers(4, 5, 2)).backward();
      return gradients_of(model);
    };
    frozen[group.rank()] = backward();
    for (auto& p : model.in->parameters()) p.set_requires_grad(true);
    backward();  // the plan was made without them
    thawed[group.rank()] = backward();
  });
  ASSERT_THAT(errors, Each(IsEmpty()));
  // The mean of the ranks' losses is that of all rows, of which each rank has as many.
  const Gradients expected = reference(torch::cat({numbers(4, 12, 0), numbers(4, 12, 1)}),
                                       torch::cat({numbers(4, 5, 2), numbers(4, 5, 2)}));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_FALSE(frozen[rank].contains("in.weight"));
    expect_same_bits(thawed[rank], thawed[0]);
    for (const auto& [name, gradient] : expected)
      EXPECT_TRUE(torch::allclose(thawed[rank].at(name), gradient, 1e-5, 1e-7)) << name;
  }
}

// Weights of the losses, say: they become rank 0's, and their gradients are averaged.
TEST(DistributedDataParallel, ParametersOutsideTheModel) {
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    Net model;
    fill(model);
    const auto weights = torch::full({3}, 1. + group.rank(), torch::kFloat).requires_grad_();
    const DistributedDataParallel parallel(model, group, {}, {weights});
    EXPECT_TRUE(torch::equal(weights, torch::ones({3})));
    const auto loss = loss_of(model.forward(numbers(4, 12, 1)), numbers(4, 5, 2));
    (loss + (weights * (2. * group.rank())).sum()).backward();
    EXPECT_TRUE(torch::equal(weights.grad(), torch::ones({3}))) << "the mean of 0 and 2";
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(DistributedDataParallel, BuffersBecomeRankZeros) {
  std::vector<torch::Tensor> mean(3), expected(3);
  const auto errors = on_ranks(3, [&](ProcessGroup& group) {
    Net model(/*with_norm=*/true), alone(/*with_norm=*/true);
    fill(model);
    fill(alone);
    const DistributedDataParallel parallel(model, group);
    const auto inputs = numbers(4, 12, group.rank());
    loss_of(model.forward(inputs), numbers(4, 5, 2)).backward();
    alone.forward(inputs);
    mean[static_cast<size_t>(group.rank())] = model.norm->running_mean.clone();
    expected[static_cast<size_t>(group.rank())] = alone.norm->running_mean.clone();
    EXPECT_EQ(model.norm->num_batches_tracked.item<std::int64_t>(), 1);
  });
  ASSERT_THAT(errors, Each(IsEmpty()));
  EXPECT_FALSE(torch::equal(expected[1], expected[0]));
  for (const auto& one : mean) EXPECT_TRUE(torch::equal(one, expected[0]));
}

// Ranks with 3, 1 and 2 batches. The truth: one process that averages over the ranks that have one.
TEST(DistributedDataParallel, UnevenBatches) {
  const std::vector<int> batches{3, 1, 2};
  std::vector<torch::Tensor> weights(3);
  std::vector<std::vector<int>> active(3);
  const auto errors = on_ranks(3, [&](ProcessGroup& group) {
    Net model;
    fill(model);
    DistributedOptions options;
    options.uneven_batches = true;
    options.bucket_bytes = options.first_bucket_bytes = 256;
    DistributedDataParallel parallel(model, group, options);
    optim::SGD optimizer(model.parameters(), optim::SGDOptions(0.5).momentum(0.9));
    const auto step = [&] {
      optimizer.step();
      optimizer.zero_grad();
      active[static_cast<size_t>(group.rank())].push_back(parallel.last_reduced().ranks);
    };
    for (int batch = 0; batch < batches[static_cast<size_t>(group.rank())]; ++batch) {
      loss_of(model.forward(numbers(4, 12, 10 * group.rank() + batch)), numbers(4, 5, 2))
          .backward();
      step();
    }
    {  // what was accumulated and never sent does not count
      const auto no_sync = parallel.no_sync();
      loss_of(model.forward(numbers(4, 12, 5)), numbers(4, 5, 2)).backward();
    }
    parallel.join(step);
    weights[static_cast<size_t>(group.rank())] = model.in->weight.detach().clone();
  });
  ASSERT_THAT(errors, Each(IsEmpty()));
  EXPECT_THAT(active, Each(std::vector<int>{3, 2, 1}));
  Net model;
  fill(model);
  optim::SGD optimizer(model.parameters(), optim::SGDOptions(0.5).momentum(0.9));
  for (int batch = 0; batch < 3; ++batch) {
    int ranks = 0;
    torch::Tensor loss = torch::zeros({});
    for (int rank = 0; rank < 3; ++rank) {
      if (batch >= batches[static_cast<size_t>(rank)]) continue;
      loss = loss + loss_of(model.forward(numbers(4, 12, 10 * rank + batch)), numbers(4, 5, 2));
      ++ranks;
    }
    (loss / ranks).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const auto& one : weights) {
    EXPECT_TRUE(torch::equal(one, weights[0]));
    EXPECT_TRUE(torch::allclose(one, model.in->weight, 1e-5, 1e-6));
  }
}

// Runs a layer again in backward, as recomputation does, in a backward within the backward.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               torch::nn::LinearImpl* layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<std::int64_t>(layer);
    return layer->forward(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    auto* layer = reinterpret_cast<torch::nn::LinearImpl*>(context->saved_data["layer"].toInt());
    const torch::AutoGradMode grad_mode(true);
    const auto x = context->get_saved_variables()[0].detach().requires_grad_();
    layer->forward(x).backward(gradients[0]);
    return {x.grad(), torch::Tensor()};
  }
};

// A parameter whose gradient comes several times in one backward, in rounds that others began.
TEST(DistributedDataParallel, RecomputedLayers) {
  std::vector<torch::Tensor> averaged(2), own(2);
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    const auto rank = static_cast<size_t>(group.rank());
    torch::nn::Sequential model(torch::nn::Linear(6, 6), torch::nn::Linear(6, 6));
    fill(*model);
    const auto backward = [&](bool recomputes) {
      auto* shared = model[0]->as<torch::nn::LinearImpl>();
      auto x = numbers(4, 6, group.rank()).requires_grad_();
      for (int use = 0; use < 3; ++use)
        x = torch::tanh(recomputes ? Recomputed::apply(x, shared) : shared->forward(x));
      model[1]->as<torch::nn::LinearImpl>()->forward(x).square().sum().backward();
    };
    backward(false);
    own[rank] = model[0]->as<torch::nn::LinearImpl>()->weight.grad().clone();
    DistributedOptions options;
    options.bucket_bytes = options.first_bucket_bytes = 8;
    const DistributedDataParallel parallel(*model, group, options);
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      backward(true);
      averaged[rank] = model[0]->as<torch::nn::LinearImpl>()->weight.grad().clone();
    }
  });
  ASSERT_THAT(errors, Each(IsEmpty()));
  EXPECT_TRUE(torch::equal(averaged[0], averaged[1]));
  EXPECT_TRUE(torch::allclose(averaged[0], (own[0] + own[1]) / 2, 1e-5, 1e-6));
}

TEST(DistributedDataParallel, JoinNeedsItsOption) {
  const auto errors = on_ranks(2, [](ProcessGroup& group) {
    Net model;
    DistributedDataParallel parallel(model, group);
    parallel.join([] {});
  });
  EXPECT_THAT(errors, Each(HasSubstr("uneven_batches = true")));
}

TEST(DistributedDataParallel, DifferentModelsAreNamed) {
  const auto sizes = on_ranks(3, [](ProcessGroup& group) {
    torch::nn::Linear model(4, group.rank() == 1 ? 3 : 2);
    const DistributedDataParallel parallel(*model, group);
  });
  EXPECT_THAT(sizes, Each(AllOf(HasSubstr("parameter weight: fp32 (3, 4)"), HasSubstr("on rank 1"),
                                HasSubstr("fp32 (2, 4)"))));
  const auto dtypes = on_ranks(2, [](ProcessGroup& group) {
    torch::nn::Linear model(4, 2);
    if (group.rank() == 1) model->to(torch::kBFloat16);
    const DistributedDataParallel parallel(*model, group);
  });
  EXPECT_THAT(dtypes, Each(AllOf(HasSubstr("bf16 (2, 4)"), HasSubstr("fp32 (2, 4)"))));
  const auto options = on_ranks(2, [](ProcessGroup& group) {
    torch::nn::Linear model(4, 2);
    DistributedOptions different;
    different.uneven_batches = group.rank() == 1;
    const DistributedDataParallel parallel(*model, group, different);
  });
  EXPECT_THAT(options, Each(HasSubstr("uneven_batches true on rank 1")));
}

TEST(DistributedDataParallel, RefusesWhatItCannotTrain) {
  ProcessGroup alone;
  torch::nn::Linear frozen(2, 2);
  for (auto& p : frozen->parameters()) p.set_requires_grad(false);
  EXPECT_THROW(DistributedDataParallel(*frozen, alone), UsageError);
  torch::nn::Linear model(2, 2);
  DistributedOptions options;
  options.bucket_bytes = 0;
  EXPECT_THROW(DistributedDataParallel(*model, alone, options), UsageError);
  options = {};
  options.gradient_dtype = torch::kLong;
  EXPECT_THROW(DistributedDataParallel(*model, alone, options), UsageError);
  const auto sparse = on_ranks(2, [](ProcessGroup& group) {
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(4, 3).sparse(true));
    const DistributedDataParallel parallel(*table, group);
    table->forward(torch::tensor({1, 2})).sum().backward();
  });
  EXPECT_THAT(sparse, Each(HasSubstr("a sparse gradient")));
  const auto elsewhere = on_ranks(2, [](ProcessGroup& group) {
    torch::nn::Module nowhere;
    nowhere.register_parameter("weight", torch::empty({2, 2}, torch::kMeta));
    const DistributedDataParallel parallel(nowhere, group);
  });
  EXPECT_THAT(elsewhere, Each(AllOf(HasSubstr("weight: fp32 on meta"),
                                    HasSubstr("on the CPU or a CUDA device"))));
}

// A model that outlives its DistributedDataParallel trains on alone.
TEST(DistributedDataParallel, LeavesNoHookBehind) {
  const auto errors = on_ranks(2, [](ProcessGroup& group) {
    Net model;
    fill(model);
    { const DistributedDataParallel parallel(model, group); }
    if (group.rank() == 1) return;
    loss_of(model.forward(numbers(4, 12, 1)), numbers(4, 5, 2)).backward();
    const auto expected = reference(numbers(4, 12, 1), numbers(4, 5, 2));
    expect_same_bits(gradients_of(model), expected);
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

}  // namespace
}  // namespace demi::distributed
