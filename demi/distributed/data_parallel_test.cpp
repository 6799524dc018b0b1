#include "demi/distributed/data_parallel.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/torch.h>

#include <limits>
#include <set>
#include <thread>

#include "demi/autocast/autocast.h"
#include "demi/core/cuda_library.h"
#include "demi/core/error.h"
#include "demi/core/flush_subnormals.h"
#include "demi/optim/sgd.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/weights/weights.h"

namespace demi {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

DataParallelOptions on_cpu(int replicas) {
  return {.devices = std::vector<c10::Device>(static_cast<std::size_t>(replicas), torch::kCPU)};
}

torch::nn::Sequential network(std::int64_t width = 16) {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(8, width), torch::nn::Tanh(),
                               torch::nn::Linear(width, 4));
}

std::vector<at::Tensor> gradients_of(const torch::nn::Sequential& model) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& p : model->parameters()) all.push_back(p.grad().to(torch::kFloat64));
  return all;
}

at::Tensor loss_of(const at::Tensor& output) { return output.to(torch::kFloat64).square().sum(); }

// The state of a replica's thread.
struct Seen {
  std::thread::id thread;
  torch::Dtype dtype;
  bool grad_mode;
  bool inference_mode;
  bool flushes;
  std::int64_t rows;
};

std::mutex seen_mutex;
std::vector<Seen> seen;

struct ProbeImpl : torch::nn::Cloneable<ProbeImpl> {
  torch::nn::Linear layer{nullptr};
  ProbeImpl() { ProbeImpl::reset(); }
  void reset() override { layer = register_module("layer", torch::nn::Linear(8, 4)); }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = layer->forward(x);
    const std::lock_guard lock(seen_mutex);
    seen.push_back({std::this_thread::get_id(), y.scalar_type(), at::GradMode::is_enabled(),
                    c10::InferenceMode::is_enabled(), flushes_subnormals(), x.size(0)});
    return y;
  }
};
TORCH_MODULE(Probe);

class DataParallelTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    seen.clear();
    torch::manual_seed(1);
  }
};

// The same parts of the batch, one after the other in one thread: what each replica adds is the
// same to the last bit, and only the additions round, once each, in FP32.
TEST_P(DataParallelTest, GradientsAreThoseOfOneProcess) {
  const int replicas = GetParam();
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
    for (const int rows : {12, 11, 7}) {
      const auto x = torch::randn({rows, 8});
      auto model = network();
      const AutocastOptions options{.dtype = dtype == torch::kFloat ? torch::kBFloat16 : dtype,
                                    .enabled = dtype != torch::kFloat};
      std::vector<std::vector<at::Tensor>> parts;
      std::vector<at::Tensor> outputs;
      for (const auto& part : x.chunk(replicas)) {
        model->zero_grad();
        {
          const Autocast region(torch::kCPU, options);
          outputs.push_back(model->forward(part));
        }
        loss_of(outputs.back()).backward();
        parts.push_back(gradients_of(model));
      }
      model->zero_grad();

      DataParallel parallel(model, on_cpu(replicas));
      at::Tensor output;
      {
        const Autocast region(torch::kCPU, options);
        output = parallel(x);
      }
      EXPECT_EQ(output.scalar_type(), dtype);
      EXPECT_TRUE(output.equal(torch::cat(outputs)));
      loss_of(output).backward();
      const auto together = gradients_of(model);
      for (std::size_t p = 0; p < together.size(); ++p) {
        auto sum = torch::zeros_like(together[p]), absolute = sum.clone();
        for (const auto& part : parts) {
          sum += part[p];
          absolute += part[p].abs();
        }
        const double eps = std::numeric_limits<float>::epsilon();
        EXPECT_TRUE(((together[p] - sum).abs() <= replicas * eps * absolute).all().item<bool>())
            << dtype << ", " << rows << " rows, parameter " << p;
      }
    }
  }
}

// The whole batch at once, where the order of sums differs in the products, too: in FP64, with the
// gradients of single rows as g_i and their number as N.
TEST_P(DataParallelTest, GradientsAreThoseOfTheWholeBatchInFp64) {
  auto model = network();
  model->to(torch::kFloat64);
  const auto x = torch::randn({13, 8}, torch::kFloat64);
  std::vector<at::Tensor> absolute;
  for (const auto& row : x.split(1)) {
    model->zero_grad();
    loss_of(model->forward(row)).backward();
    const auto gradients = gradients_of(model);
    for (std::size_t p = 0; p < gradients.size(); ++p)
      if (absolute.size() == p)
        absolute.push_back(gradients[p].abs());
      else
        absolute[p] += gradients[p].abs();
  }
  model->zero_grad();
  loss_of(model->forward(x)).backward();
  std::vector<at::Tensor> whole;
  for (const auto& g : gradients_of(model)) whole.push_back(g.clone());
  model->zero_grad();
  DataParallel parallel(model, on_cpu(GetParam()));
  loss_of(parallel(x)).backward();
  const auto together = gradients_of(model);
  const double eps = std::numeric_limits<double>::epsilon();
  for (std::size_t p = 0; p < together.size(); ++p)
    EXPECT_TRUE(((together[p] - whole[p]).abs() <= 13 * eps * absolute[p]).all().item<bool>());
}

TEST_P(DataParallelTest, TheCallersStateReachesEveryThread) {
  const int replicas = GetParam();
  Probe model;
  DataParallel parallel(model, on_cpu(replicas));
  const auto x = torch::randn({2 * replicas, 8});
  const auto run = [&] {
    seen.clear();
    parallel(x);
    std::set<std::thread::id> threads;
    for (const Seen& one : seen) {
      threads.insert(one.thread);
      EXPECT_EQ(one.rows, 2);
    }
    EXPECT_EQ(threads.size(), replicas);
    EXPECT_TRUE(threads.contains(std::this_thread::get_id()));
  };
  const auto dtypes = [] {
    std::vector<torch::Dtype> all;
    for (const Seen& one : seen) all.push_back(one.dtype);
    return all;
  };
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    const Autocast region(torch::kCPU, dtype);
    run();
    EXPECT_THAT(dtypes(), Each(dtype));
    {
      const Autocast fp32(torch::kCPU, AutocastOptions{.enabled = false});
      run();
      EXPECT_THAT(dtypes(), Each(torch::kFloat));
    }
    const Autocast policy(torch::kCPU, AutocastOptions{.policy = OpPolicy::named("default").set(
                                                           "addmm", OpCategory::fp32)});
    run();
    EXPECT_THAT(dtypes(), Each(torch::kFloat));
  }
  run();  // the region is left: it must be gone from the threads, too
  EXPECT_THAT(dtypes(), Each(torch::kFloat));
  const auto all = [](auto member) {
    std::vector<bool> values;
    for (const Seen& one : seen) values.push_back(one.*member);
    return values;
  };
  EXPECT_THAT(all(&Seen::grad_mode), Each(true));
  EXPECT_THAT(all(&Seen::flushes), Each(false));
  {
    const at::NoGradGuard no_grad;
    const FlushSubnormals flush;
    run();
    EXPECT_THAT(all(&Seen::grad_mode), Each(false));
    EXPECT_THAT(all(&Seen::flushes), Each(true));
  }
  {
    const c10::InferenceMode inference;
    run();
    EXPECT_THAT(all(&Seen::inference_mode), Each(true));
  }
  run();
  EXPECT_THAT(all(&Seen::flushes), Each(false));
  EXPECT_THAT(all(&Seen::inference_mode), Each(false));
}

// torch::nn::parallel::parallel_apply runs its replicas in at::parallel_for.
TEST_F(DataParallelTest, AutocastDoesNotReachLibTorchsParallelFor) {
  if (at::get_num_threads() < 2) GTEST_SKIP() << "one thread alone";
  Probe model;
  const auto x = torch::randn({2, 8});
  const Autocast region(torch::kCPU, torch::kBFloat16);
  at::parallel_for(0, 2, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) model->forward(x);
  });
  for (const Seen& one : seen)
    EXPECT_EQ(one.dtype,
              one.thread == std::this_thread::get_id() ? torch::kBFloat16 : torch::kFloat);
}

// Large weights, so that the threads meet at the same one.
TEST_P(DataParallelTest, ReplicasOfOneDeviceCastAWeightOnce) {
  if (weights::mode() != weights::Mode::keep) GTEST_SKIP() << "copies end with their region";
  auto model = network(60'000);
  const auto x = torch::randn({6, 8});
  DataParallel parallel(model, on_cpu(GetParam()));
  for (int round = 0; round < 10; ++round) {
    weights::drop();
    weights::reset_stats();
    for (int step = 0; step < 2; ++step) {
      const Autocast region(torch::kCPU, torch::kBFloat16);
      parallel(x);
    }
    EXPECT_EQ(weights::stats().casts, 4) << "two layers with weight and bias";
    EXPECT_EQ(weights::stats().copies, 4);
  }
  {
    const at::NoGradGuard no_grad;
    model->parameters()[0].add_(1);
  }
  weights::reset_stats();
  const Autocast region(torch::kCPU, torch::kBFloat16);
  const auto output = parallel(x);
  EXPECT_EQ(weights::stats().casts, 1) << "only what was written";
  EXPECT_TRUE(output.equal(torch::cat([&] {
    std::vector<at::Tensor> parts;
    for (const auto& part : x.chunk(GetParam())) parts.push_back(model->forward(part));
    return parts;
  }())));
}

TEST_F(DataParallelTest, DropsItsCopiesAtTheEnd) {
  const auto before = weights::stats().copies;
  {
    DataParallel parallel(network(), on_cpu(2));
    const Autocast region(torch::kCPU, torch::kBFloat16);
    parallel(torch::randn({4, 8}));
  }
  EXPECT_EQ(weights::stats().copies, before);
}

struct ThrowsImpl : torch::nn::Cloneable<ThrowsImpl> {
  void reset() override {}
  // The first element says what is thrown.
  at::Tensor forward(const at::Tensor& x) {
    const int what = static_cast<int>(x[0].item<float>());
    if (what == 1) throw std::out_of_range("too far");
    if (what == 2) TORCH_CHECK_INDEX(false, "no such row");
    if (what == 3) throw 3;
    if (what == 4) return {};
    const std::lock_guard lock(seen_mutex);
    seen.push_back({});
    return x;
  }
};
TORCH_MODULE(Throws);

std::string message_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no exception";
}

TEST_F(DataParallelTest, AnExceptionNamesReplicaAndDevice) {
  DataParallel parallel(Throws(), on_cpu(3));
  const auto of = [&](std::vector<float> what) { parallel(torch::tensor(what)); };
  EXPECT_THAT(message_of([&] {
                of({0, 1, 0});
              }),
              AllOf(HasSubstr("replica 1 on cpu"), HasSubstr("too far")));
  EXPECT_EQ(seen.size(), 2) << "the others came to their end";
  EXPECT_THAT(message_of([&] { of({0, 1, 3}); }), HasSubstr("replica 1")) << "the first one";
  EXPECT_THAT(message_of([&] { of({1, 0, 0}); }), HasSubstr("replica 0")) << "the caller's thread";
  EXPECT_THAT(message_of([&] { of({0, 0, 3}); }), HasSubstr("replica 2"));
  EXPECT_THAT(message_of([&] {
                of({0, 4, 0});
              }),
              AllOf(HasSubstr("replica 1"), HasSubstr("returned no tensor")));
  EXPECT_THROW(of({0, 0, 2}), c10::IndexError) << "LibTorch's exceptions keep their type";
  EXPECT_THAT(message_of([&] {
                of({0, 0, 2});
              }),
              AllOf(HasSubstr("replica 2 on cpu"), HasSubstr("no such row")));
  try {
    of({0, 1, 0});
    FAIL();
  } catch (const ReplicaError& error) {
    EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
  }
  EXPECT_TRUE(parallel(torch::zeros({3})).equal(torch::zeros({3}))) << "and it goes on";
}

TEST_F(DataParallelTest, FewerRowsThanReplicas) {
  Probe model;
  DataParallel parallel(model, on_cpu(3));
  const auto rows = [&](std::int64_t count) {
    seen.clear();
    const auto x = torch::randn({count, 8});
    const auto y = parallel(x);
    EXPECT_TRUE(torch::allclose(y, model->layer->forward(x)));
    EXPECT_EQ(y.size(0), count);
    std::multiset<std::int64_t> sizes;
    for (const Seen& one : seen) sizes.insert(one.rows);
    return sizes;
  };
  using Sizes = std::multiset<std::int64_t>;
  EXPECT_EQ(rows(0), Sizes({0}));
  EXPECT_EQ(rows(1), Sizes({1}));
  EXPECT_EQ(rows(2), Sizes({1, 1}));
  EXPECT_EQ(rows(3), Sizes({1, 1, 1}));
  EXPECT_EQ(rows(4), Sizes({2, 2})) << "as torch::chunk divides";
  EXPECT_EQ(rows(7), Sizes({1, 3, 3}));
}

struct SumImpl : torch::nn::Cloneable<SumImpl> {
  at::Tensor weight;
  SumImpl() { SumImpl::reset(); }
  void reset() override { weight = register_parameter("weight", torch::ones({3})); }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) {
    const auto sum = (x * weight.unsqueeze(1)).sum();
    return y.defined() ? sum + y.sum() : sum;
  }
};
TORCH_MODULE(Sum);

TEST_F(DataParallelTest, SeveralInputsAnotherDimensionAndScalars) {
  auto options = on_cpu(2);
  options.dim = 1;
  Sum model;
  DataParallel parallel(model, options);
  const auto x = torch::arange(12.).view({3, 4}).requires_grad_();
  const auto y = torch::full({1, 4}, 100.);
  // Columns {0, 1}: 0 + 1 + 4 + 5 + 8 + 9 = 27; {2, 3}: 2 + 3 + 6 + 7 + 10 + 11 = 39.
  const auto sums = parallel(x, y);
  EXPECT_TRUE(sums.equal(torch::tensor({227., 239.}))) << sums;
  EXPECT_TRUE(parallel(x, at::Tensor()).equal(torch::tensor({27., 39.})));
  EXPECT_TRUE(parallel(x.slice(1, 0, 1), at::Tensor()).equal(torch::tensor({12.})));
  sums.sum().backward();
  EXPECT_TRUE(x.grad().equal(torch::ones({3, 4}))) << "the input's gradient";
  EXPECT_TRUE(model->weight.grad().equal(torch::tensor({6., 22., 38.}))) << "sums of the rows";
}

TEST_F(DataParallelTest, InputsThatCannotBeDivided) {
  DataParallel parallel(Sum(), on_cpu(2));
  EXPECT_THAT(message_of([&] {
                parallel(torch::ones({3, 2}), torch::ones({4}));
              }),
              AllOf(HasSubstr("seen: 4"), HasSubstr("accepted: 3")));
  EXPECT_THROW(parallel(torch::ones({}), torch::ones({})), UsageError);
  EXPECT_THROW(parallel(at::Tensor(), at::Tensor()), UsageError);
}

struct PlainNet : torch::nn::Module {
  torch::nn::Linear layer;
  PlainNet() : layer(register_module("layer", torch::nn::Linear(8, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return layer->forward(x); }
};

TEST_F(DataParallelTest, ModulesThatAreNotCloneable) {
  const auto model = std::make_shared<PlainNet>();
  EXPECT_THAT(message_of([&] { DataParallel parallel(model, on_cpu(2)); }),
              AllOf(HasSubstr("cannot be cloned"), HasSubstr("make_replica")));
  auto options = on_cpu(2);
  options.make_replica = [] { return std::make_shared<PlainNet>(); };
  DataParallel parallel(model, options);
  const auto x = torch::randn({4, 8});
  EXPECT_TRUE(torch::allclose(parallel(x), model->forward(x)));
  options.make_replica = [] { return network().ptr(); };
  EXPECT_THAT(message_of([&] { DataParallel wrong(model, options); }),
              HasSubstr("other parameters"));
}

TEST_F(DataParallelTest, DevicesThatDoNotFit) {
  EXPECT_THROW(DataParallel(network(), {.devices = {torch::kMeta}}), UsageError);
  auto model = network();
  model->register_buffer("elsewhere", torch::empty({1}, torch::kMeta));
  EXPECT_THAT(message_of([&] { DataParallel parallel(model, on_cpu(2)); }),
              AllOf(HasSubstr("\"elsewhere\""), HasSubstr("meta")));
  if (!load_cuda().loaded || !torch::cuda::is_available()) {
    EXPECT_THROW(DataParallel(network(), {}), DeviceError);
    EXPECT_THROW(DataParallel(network(), {.devices = {torch::kCPU, torch::kCUDA}}), DeviceError);
  }
}

TEST_F(DataParallelTest, LeavesRandomNumbersWhereTheyWere) {
  auto model = network();
  torch::manual_seed(5);
  const auto expected = torch::rand({3});
  torch::manual_seed(5);
  const DataParallel parallel(model, on_cpu(3));
  EXPECT_TRUE(torch::rand({3}).equal(expected));
}

// As nn.DataParallel: the running statistics are those of the first replica's part.
TEST_F(DataParallelTest, BuffersAndTrainingModeAreTheModules) {
  torch::nn::Sequential model(torch::nn::BatchNorm1d(4));
  DataParallel parallel(model, on_cpu(2));
  const auto x = torch::randn({8, 4});
  const auto y = parallel(x);
  const auto part = [&](int i) { return x.chunk(2)[i]; };
  const auto normalised = [](const at::Tensor& t) {
    return (t - t.mean(0)) / (t.var(0, /*unbiased=*/false) + 1e-5).sqrt();
  };
  EXPECT_TRUE(
      torch::allclose(y, torch::cat({normalised(part(0)), normalised(part(1))}), 1e-4, 1e-5));
  const auto mean = model->named_buffers()["0.running_mean"];
  EXPECT_TRUE(torch::allclose(mean, 0.1 * part(0).mean(0), 1e-4, 1e-6));
  EXPECT_EQ(model->named_buffers()["0.num_batches_tracked"].item<int>(), 1);
  model->eval();
  EXPECT_TRUE(torch::allclose(parallel(x), model->forward(x))) << "the second one, too";
  EXPECT_EQ(model->named_buffers()["0.num_batches_tracked"].item<int>(), 1);
}

TEST_F(DataParallelTest, FrozenWeightsGetNoGradient) {
  auto model = network();
  model->parameters()[0].set_requires_grad(false);
  DataParallel parallel(model, on_cpu(2));
  {
    const Autocast region(torch::kCPU, torch::kBFloat16);
    loss_of(parallel(torch::randn({4, 8}))).backward();
  }
  EXPECT_FALSE(model->parameters()[0].grad().defined());
  EXPECT_TRUE(model->parameters()[1].grad().defined());
}

// Gradient accumulation: the replicas' tensors are the same in both graphs.
TEST_P(DataParallelTest, TwoGraphsBeforeBackward) {
  auto model = network();
  DataParallel parallel(model, on_cpu(GetParam()));
  const auto a = torch::randn({6, 8}), b = torch::randn({6, 8});
  const auto first = loss_of(parallel(a)), second = loss_of(parallel(b));
  second.backward();
  first.backward();
  const auto together = gradients_of(model);
  model->zero_grad();
  loss_of(model->forward(torch::cat({a, b}))).backward();
  const auto expected = gradients_of(model);
  for (std::size_t p = 0; p < expected.size(); ++p)
    EXPECT_TRUE(torch::allclose(together[p], expected[p], 1e-4, 1e-5));
}

// With an optimizer that takes gradients of 16 bits, a scaler, and weights that change.
TEST_P(DataParallelTest, TrainsAsOneProcess) {
  std::vector<std::vector<at::Tensor>> trained;
  for (const bool in_parallel : {false, true}) {
    auto model = network();
    DataParallel parallel(model, on_cpu(GetParam()));
    optim::SGD optimizer(model->parameters(), optim::SGDOptions(0.05));
    GradScaler scaler(GradScalerOptions{.init_scale = 256});
    torch::manual_seed(9);
    for (int step = 0; step < 20; ++step) {
      const auto x = torch::randn({12, 8});
      at::Tensor loss;
      {
        const Autocast region(torch::kCPU, torch::kBFloat16);
        const auto y = in_parallel ? parallel(x) : model->forward(x);
        loss = torch::mse_loss(y, x.slice(1, 0, 4));
      }
      scaler.scale(loss).backward();
      scaler.step(optimizer);
      scaler.update();
      optimizer.zero_grad();
    }
    trained.push_back(model->parameters());
  }
  // bf16 rounds to 2^-9 of a value; the order of sums alone differs.
  for (std::size_t p = 0; p < trained[0].size(); ++p)
    EXPECT_TRUE(torch::allclose(trained[0][p], trained[1][p], 0.02, 4e-3)) << p;
}

struct RecurrentImpl : torch::nn::Cloneable<RecurrentImpl> {
  torch::nn::LSTM lstm{nullptr};
  RecurrentImpl() { RecurrentImpl::reset(); }
  void reset() override {
    lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(4, 6).batch_first(true)));
  }
  at::Tensor forward(const at::Tensor& x) { return std::get<0>(lstm->forward(x)); }
};
TORCH_MODULE(Recurrent);

TEST_P(DataParallelTest, RecurrentLayers) {
  Recurrent model;
  DataParallel parallel(model, on_cpu(GetParam()));
  const auto x = torch::randn({6, 5, 4});
  const auto parts = x.chunk(GetParam());
  const Autocast region(torch::kCPU, torch::kBFloat16);
  std::vector<at::Tensor> expected;
  for (const auto& part : parts) expected.push_back(model->forward(part));
  const auto output = parallel(x);
  EXPECT_TRUE(output.equal(torch::cat(expected)));
  loss_of(output).backward();
  EXPECT_TRUE(model->parameters()[0].grad().defined());
}

TEST(GpuDataParallel, TwoReplicasOnOneGpu) {
  const CudaLibrary& library = load_cuda();
  if (!library.loaded) GTEST_SKIP() << library.reason;
  if (!torch::cuda::is_available()) GTEST_SKIP() << "LibTorch finds no CUDA device";
  const c10::Device device(torch::kCUDA, 0);
  for (const auto dtype : {torch::kHalf, torch::kBFloat16}) {
    Probe model;
    model->to(device);
    DataParallel parallel(model, {.devices = {device, device}});
    const auto x = torch::randn({6, 8}, device);
    seen.clear();
    weights::reset_stats();
    at::Tensor output, expected;
    {
      const Autocast region(torch::kCUDA, dtype);
      output = parallel(x.cpu());
      expected = torch::cat(
          {model->layer->forward(x.slice(0, 0, 3)), model->layer->forward(x.slice(0, 3, 6))});
    }
    EXPECT_EQ(seen.size(), 2);
    for (const Seen& one : seen) EXPECT_EQ(one.dtype, dtype);
    if (weights::mode() == weights::Mode::keep) {
      EXPECT_EQ(weights::stats().casts, 2);
    }
    EXPECT_EQ(output.device(), device);
    EXPECT_TRUE(output.equal(expected));
    loss_of(output).backward();
    const auto gradient = model->layer->weight.grad().clone();
    model->zero_grad();
    loss_of(expected).backward();
    EXPECT_TRUE(torch::allclose(gradient, model->layer->weight.grad(), 1e-2, 1e-3));
  }
}

INSTANTIATE_TEST_SUITE_P(Replicas, DataParallelTest, ::testing::Values(2, 3));

}  // namespace
}  // namespace demi
