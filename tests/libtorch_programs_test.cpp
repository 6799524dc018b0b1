// Programs of the shapes that are published for LibTorch: each with torch::optim in FP32 as it
// stands, and with demi's optimizers in FP32 and in both 16-bit formats.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>

#include "demi/demi.h"

namespace demi {
namespace {

namespace nn = torch::nn;
namespace fn = torch::nn::functional;
using at::Tensor;
using torch::optim::OptimizerParamGroup;

struct LibTorch {
  using SGD = torch::optim::SGD;
  using Adam = torch::optim::Adam;
  using AdamW = torch::optim::AdamW;
  static const Tensor& exp_avg(torch::optim::OptimizerParamState& state) {
    return static_cast<torch::optim::AdamParamState&>(state).exp_avg();
  }
  static const Tensor& exp_avg_sq(torch::optim::OptimizerParamState& state) {
    return static_cast<torch::optim::AdamParamState&>(state).exp_avg_sq();
  }
};

struct Demi {
  using SGD = optim::SGD;
  using Adam = optim::Adam;
  using AdamW = optim::AdamW;
  static const Tensor& exp_avg(torch::optim::OptimizerParamState& state) {
    return static_cast<optim::ParamState&>(state)["exp_avg"];
  }
  static const Tensor& exp_avg_sq(torch::optim::OptimizerParamState& state) {
    return static_cast<optim::ParamState&>(state)["exp_avg_sq"];
  }
};

/// The precision of a run: regions and a scaler that do nothing in FP32.
class Mixed {
 public:
  explicit Mixed(at::ScalarType dtype)
      : dtype_(dtype), scaler_({.init_scale = 1024, .enabled = dtype == at::kHalf}) {}
  AutocastOptions region() const {
    return {.dtype = dtype_ == at::kFloat ? at::kBFloat16 : dtype_,
            .enabled = dtype_ != at::kFloat};
  }
  GradScaler& scaler() { return scaler_; }

 private:
  at::ScalarType dtype_;
  GradScaler scaler_;
};

using Losses = std::vector<double>;

constexpr int kSteps = 24;

/// The rule's rounding in FP32: each step's update is rounded a few times by at most 2^-24 of
/// itself, in another order than LibTorch's at most, and what a step is off goes on into the next:
/// at most 8 roundings a step here, with losses no steeper in the weights than 4.
constexpr double kFp32 = kSteps * 8 * 4 * 0x1p-24;
/// In 16 bits: products of bf16 numbers are off by 2^-8 each at most, in fewer than 10 layers
/// forward and backward, of either sign: a tenth of the loss or of the first one, which sets the
/// unit where the loss has become small.
constexpr double kLow = 0.1;

template <class Program>
void expect_alike(const Program& program) {
  torch::manual_seed(3);
  const Losses wanted = program(LibTorch(), at::kFloat);
  ASSERT_EQ(wanted.size(), static_cast<std::size_t>(kSteps));
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    torch::manual_seed(3);
    const Losses seen = program(Demi(), dtype);
    const double share = dtype == at::kFloat ? kFp32 : kLow;
    for (std::size_t i = 0; i < wanted.size(); ++i)
      EXPECT_NEAR(seen[i], wanted[i], share * std::max(std::abs(wanted[i]), wanted[0]))
          << c10::toString(dtype) << ", step " << i;
  }
}

// Two networks, each with an optimizer that is saved, made anew in its place and loaded.
struct Gan {
  template <class Kit>
  Losses operator()(Kit, at::ScalarType dtype) const {
    nn::Sequential generator(nn::Linear(8, 32), nn::BatchNorm1d(32), nn::ReLU(),
                             nn::Linear(32, 16));
    nn::Sequential critic(nn::Linear(16, 32),
                          nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)),
                          nn::Linear(32, 1));
    const auto options = torch::optim::AdamOptions(1e-3).betas({0.5, 0.9}).eps(1e-4);
    typename Kit::Adam of_generator(generator->parameters(), options);
    typename Kit::Adam of_critic(critic->parameters(), options);
    Mixed mixed(dtype);
    Losses losses;
    for (int step = 0; step < kSteps; ++step) {
      const Tensor real = torch::randn({32, 16}) * 0.5 + 1, noise = torch::randn({32, 8});
      of_critic.zero_grad();
      Tensor loss, fake;
      {
        const Autocast region(at::kCPU, mixed.region());
        fake = generator->forward(noise);
        const Tensor on_real = critic->forward(real), on_fake = critic->forward(fake.detach());
        loss = fn::binary_cross_entropy_with_logits(on_real, torch::ones({32, 1})) +
               fn::binary_cross_entropy_with_logits(on_fake, torch::zeros({32, 1}));
      }
      mixed.scaler().scale(loss).backward();
      mixed.scaler().step(of_critic);
      losses.push_back(loss.item<double>());
      of_generator.zero_grad();
      {
        const Autocast region(at::kCPU, mixed.region());
        loss = fn::binary_cross_entropy_with_logits(critic->forward(fake), torch::ones({32, 1}));
      }
      mixed.scaler().scale(loss).backward();
      mixed.scaler().step(of_generator);
      if (dtype == at::kHalf) mixed.scaler().update();
      if (step != kSteps / 2) continue;
      for (auto* pair : {&of_generator, &of_critic}) {
        std::stringstream file;
        torch::save(*pair, file);
        *pair = typename Kit::Adam(pair->param_groups()[0].params(), options);
        torch::load(*pair, file);
      }
    }
    return losses;
  }
};

TEST(LibTorchPrograms, AGanThatSavesBothOptimizers) { expect_alike(Gan()); }

// Attention by hand with a mask, and "Attention is all you need"'s rate through a cast of options.
struct Transformer {
  static constexpr int64_t kWords = 12, kWidth = 16, kLength = 6;
  template <class Kit>
  Losses operator()(Kit, at::ScalarType dtype) const {
    nn::Embedding embedding(kWords, kWidth);
    nn::Linear qkv(kWidth, 3 * kWidth), mixing(kWidth, kWidth), out(kWidth, kWords);
    nn::LayerNorm norm(nn::LayerNormOptions({kWidth}));
    std::vector<Tensor> parameters;
    for (const auto& part : std::vector<std::shared_ptr<nn::Module>>{
             embedding.ptr(), qkv.ptr(), mixing.ptr(), out.ptr(), norm.ptr()})
      for (const auto& p : part->parameters()) parameters.push_back(p);
    typename Kit::Adam optimizer(parameters,
                                 torch::optim::AdamOptions(0).betas({0.9, 0.98}).eps(1e-4));
    const Tensor mask = torch::ones({kLength, kLength}, at::kBool).triu(1);
    const Tensor tokens = torch::randint(kWords, {16, kLength + 1});
    const Tensor input = tokens.slice(1, 0, kLength), target = tokens.slice(1, 1, kLength + 1);
    Mixed mixed(dtype);
    Losses losses;
    for (int step = 1; step <= kSteps; ++step) {
      for (auto& group : optimizer.param_groups())
        static_cast<torch::optim::AdamOptions&>(group.options())
            .lr(0.1 * std::pow(kWidth, -0.5) *
                std::min(std::pow(step, -0.5), step * std::pow(10.0, -1.5)));
      optimizer.zero_grad();
      Tensor loss;
      {
        const Autocast region(at::kCPU, mixed.region());
        const Tensor x = embedding(input);
        const auto parts = qkv(norm(x)).chunk(3, -1);
        Tensor scores = parts[0].matmul(parts[1].transpose(1, 2)) / std::sqrt(kWidth);
        scores = scores.masked_fill(mask, -65504.0);
        const Tensor logits = out(x + mixing(scores.softmax(-1).matmul(parts[2])));
        loss = fn::cross_entropy(logits.flatten(0, 1), target.flatten());
      }
      mixed.scaler().scale(loss).backward();
      mixed.scaler().step(optimizer);
      if (dtype == at::kHalf) mixed.scaler().update();
      losses.push_back(loss.item<double>());
    }
    return losses;
  }
};

TEST(LibTorchPrograms, ATransformerWithItsOwnSchedule) { expect_alike(Transformer()); }

// Weight decay by groups, tied weights, and clipping by the program's own code.
struct Gpt {
  static constexpr int64_t kWords = 16, kWidth = 16, kLength = 8;
  template <class Kit>
  Losses operator()(Kit, at::ScalarType dtype) const {
    nn::Embedding words(kWords, kWidth), places(kLength, kWidth);
    nn::Sequential block(nn::LayerNorm(nn::LayerNormOptions({kWidth})), nn::Linear(kWidth, 64),
                         nn::GELU(), nn::Linear(64, kWidth));
    std::vector<Tensor> decayed, others;
    for (const auto& p : {words->weight, places->weight}) decayed.push_back(p);
    for (const auto& p : block->parameters()) (p.dim() > 1 ? decayed : others).push_back(p);
    std::vector<OptimizerParamGroup> groups;
    using Options = torch::optim::AdamWOptions;
    groups.emplace_back(decayed, std::make_unique<Options>(Options(1e-2).weight_decay(0.1)));
    groups.emplace_back(others, std::make_unique<Options>(Options(1e-2).weight_decay(0)));
    for (auto& group : groups) static_cast<Options&>(group.options()).eps(1e-4);
    typename Kit::AdamW optimizer(groups);
    const Tensor tokens = torch::randint(kWords, {8, kLength + 1});
    const Tensor input = tokens.slice(1, 0, kLength), target = tokens.slice(1, 1, kLength + 1);
    Mixed mixed(dtype);
    Losses losses;
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      Tensor loss;
      {
        const Autocast region(at::kCPU, mixed.region());
        const Tensor x = words(input) + places(torch::arange(kLength));
        const Tensor logits = fn::linear(x + block->forward(x), words->weight);
        loss = fn::cross_entropy(logits.flatten(0, 1), target.flatten());
      }
      mixed.scaler().scale(loss).backward();
      mixed.scaler().unscale_(optimizer);
      double squares = 0;
      for (const auto& group : optimizer.param_groups())
        for (const auto& p : group.params())
          squares += p.grad().to(at::kFloat).square().sum().template item<double>();
      const double norm = std::sqrt(squares);
      if (norm > 0.5)
        for (const auto& group : optimizer.param_groups())
          for (const auto& p : group.params()) p.grad().mul_(0.5 / norm);
      mixed.scaler().step(optimizer);
      if (dtype == at::kHalf) mixed.scaler().update();
      losses.push_back(loss.item<double>());
    }
    return losses;
  }
};

TEST(LibTorchPrograms, AGptThatClipsByItsOwnCode) { expect_alike(Gpt()); }

// As Gaussian splatting does: five groups of one tensor and one rate each, whose rows are cut away
// and copied, and whose moments go along.
struct Splats {
  template <class Kit>
  Losses operator()(Kit, at::ScalarType dtype) const {
    constexpr double kRates[] = {3e-2, 1e-2, 2e-2, 1e-2, 5e-3};
    std::vector<OptimizerParamGroup> groups;
    for (const double rate : kRates)
      groups.emplace_back(std::vector<Tensor>{torch::randn({16, 4}).requires_grad_()},
                          std::make_unique<torch::optim::AdamOptions>(rate));
    typename Kit::Adam optimizer(groups, torch::optim::AdamOptions(0).eps(1e-4));
    const Tensor x = torch::randn({32, 4}), target = torch::randn({32, 1});
    Mixed mixed(dtype);
    Losses losses;
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      Tensor loss;
      {
        const Autocast region(at::kCPU, mixed.region());
        Tensor y = torch::zeros({32, 1});
        for (auto& group : optimizer.param_groups())
          y = y + x.matmul(group.params()[0].t()).tanh().mean(1, true);
        loss = fn::mse_loss(y.to(at::kFloat), target);
      }
      mixed.scaler().scale(loss).backward();
      mixed.scaler().step(optimizer);
      if (dtype == at::kHalf) mixed.scaler().update();
      losses.push_back(loss.item<double>());
      if (step % 6 != 5) continue;
      const Tensor rows = torch::cat({torch::arange(2, 16), torch::arange(2)});
      for (auto& group : optimizer.param_groups()) replace<Kit>(optimizer, group, rows);
    }
    return losses;
  }

  template <class Kit>
  static void replace(torch::optim::Optimizer& optimizer, OptimizerParamGroup& group,
                      const Tensor& rows) {
    const Tensor old = group.params()[0];
    const Tensor now = old.detach().index_select(0, rows).requires_grad_();
    auto& state = *optimizer.state().at(old.unsafeGetTensorImpl());
    auto kept = std::make_unique<torch::optim::AdamParamState>();
    kept->step(1).exp_avg(Kit::exp_avg(state).index_select(0, rows));
    kept->exp_avg_sq(Kit::exp_avg_sq(state).index_select(0, rows));
    optimizer.state().erase(old.unsafeGetTensorImpl());
    optimizer.state()[now.unsafeGetTensorImpl()] = std::move(kept);
    group.params()[0] = now;
  }
};

TEST(LibTorchPrograms, FiveGroupsWhoseMembersAreMadeAnew) { expect_alike(Splats()); }

// Fine-tuning: the head alone, then the encoder as a group of its own at a lower rate.
struct FrozenEncoder {
  template <class Kit>
  Losses operator()(Kit, at::ScalarType dtype) const {
    nn::Sequential encoder(nn::Conv2d(nn::Conv2dOptions(1, 4, 3).padding(1)), nn::BatchNorm2d(4),
                           nn::ReLU(), nn::AdaptiveAvgPool2d(2), nn::Flatten());
    nn::Linear head(16, 3);
    for (auto& p : encoder->parameters()) p.set_requires_grad(false);
    const auto options = torch::optim::SGDOptions(0.2).momentum(0.9);
    typename Kit::SGD optimizer(head->parameters(), options);
    const Tensor input = torch::randn({24, 1, 6, 6}), target = torch::arange(24) % 3;
    Mixed mixed(dtype);
    Losses losses;
    for (int step = 0; step < kSteps; ++step) {
      if (step == kSteps / 2) {
        for (auto& p : encoder->parameters()) p.set_requires_grad(true);
        optimizer.add_param_group(
            {encoder->parameters(), std::make_unique<torch::optim::SGDOptions>(
                                        torch::optim::SGDOptions(0.02).momentum(0.9))});
      }
      optimizer.zero_grad();
      Tensor loss;
      {
        const Autocast region(at::kCPU, mixed.region());
        loss = fn::cross_entropy(head(encoder->forward(input)), target);
      }
      mixed.scaler().scale(loss).backward();
      mixed.scaler().step(optimizer);
      if (dtype == at::kHalf) mixed.scaler().update();
      losses.push_back(loss.item<double>());
    }
    return losses;
  }
};

TEST(LibTorchPrograms, AnEncoderFrozenAndThawed) { expect_alike(FrozenEncoder()); }

}  // namespace
}  // namespace demi
