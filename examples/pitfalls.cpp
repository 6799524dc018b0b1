// The pitfalls of 16-bit training, each with its cure, in numbers. docs/guide/pitfalls.md tells
// them.
//
//     pitfalls              all of them
//     pitfalls underflow    one of them
//
// A pitfall is shown in fp16 where it is fp16's; regions run in the dtype that is asked for. Exits
// with 1 if a number is not what this file says.
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

using torch::kBFloat16, torch::kFloat, torch::kHalf;

bool failed = false;

void require(bool right) { failed = failed || !right; }

double number(const torch::Tensor& tensor) { return tensor.to(torch::kDouble).item<double>(); }

void print(const char* what, double value) { std::printf("%-52s %.10g\n", what, value); }

// What an exception says, without LibTorch's lines about its sources.
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.substr(0, text.find('\n'));
  }
  return "nothing was thrown";
}

void underflow(const Arguments& on) {
  const auto gradient = torch::full({}, 1e-8, on.device);
  const auto scaled = gradient * 65536;
  print("1e-8 in fp32", number(gradient));
  print("1e-8 in fp16", number(gradient.to(kHalf)));
  print("1e-8 in bf16", number(gradient.to(kBFloat16)));
  print("1e-8 x 65536 in fp16", number(scaled.to(kHalf)));
  print("and divided by 65536 in fp32", number(scaled.to(kHalf).to(kFloat) / 65536));
  require(number(gradient.to(kHalf)) == 0 && number(gradient.to(kBFloat16)) > 0);
  require(std::fabs(number(scaled.to(kHalf).to(kFloat) / 65536) - 1e-8) < 1e-8 / 2048);
}

void overflow(const Arguments& on) {
  const auto value = torch::full({}, 65520.0, on.device);
  print("65519 in fp16", number((value - 1).to(kHalf)));
  print("65520 in fp16", number(value.to(kHalf)));
  print("65520 in bf16", number(value.to(kBFloat16)));
  const auto loss = torch::full({}, 2.0, on.device).to(kHalf);
  print("a loss of 2 in fp16, times 65536", number(loss * 65536));
  demi::GradScaler scaler;
  print("the same by GradScaler::scale, which gives fp32", number(scaler.scale(loss)));
  require(std::isinf(number(value.to(kHalf))) && number((value - 1).to(kHalf)) == 65504);
  require(std::isinf(number(loss * 65536)) && number(scaler.scale(loss)) == 131072);
}

// 4,096 ones, one after the other, as a loop or a running sum adds them.
void swamping(const Arguments& on) {
  auto sum = torch::zeros({}, torch::dtype(kHalf).device(on.device));
  const auto one = torch::ones_like(sum);
  for (int i = 0; i < 4096; ++i) sum += one;
  const auto ones = torch::ones({4096}, torch::dtype(kHalf).device(on.device));
  print("4096 ones, added one by one in fp16", number(sum));
  print("torch::sum of them, which adds in fp32", number(ones.sum()));
  print("2048 + 1 in fp16", number(torch::full_like(one, 2048) + 1));
  print("256 + 1 in bf16", number(torch::full_like(one, 256).to(kBFloat16) + 1));
  require(number(sum) == 2048 && number(ones.sum()) == 4096);
}

// A weight of 1 that gets 1,000 updates of 1e-4.
double updated(torch::optim::Optimizer& optimizer, torch::Tensor& weight) {
  for (int step = 0; step < 1000; ++step) {
    weight.mutable_grad() = torch::full_like(weight, -1);
    optimizer.step();
  }
  return number(weight.detach());
}

void stagnation(const Arguments& on) {
  const auto weight = [&](torch::Dtype dtype) {
    return torch::ones({1}, torch::dtype(dtype).device(on.device)).requires_grad_();
  };
  auto plain = weight(kHalf), with_master = weight(kHalf), single = weight(kFloat);
  torch::optim::SGD of_torch({plain}, 1e-4);
  demi::optim::SGD of_demi({with_master}, demi::optim::SGDOptions(1e-4));
  demi::optim::SGD of_fp32({single}, demi::optim::SGDOptions(1e-4));
  const double stuck = updated(of_torch, plain), moved = updated(of_demi, with_master);
  print("an fp16 weight of 1 after 1000 updates of 1e-4", stuck);
  print("the same with an fp32 master weight", moved);
  require(stuck == 1 && std::fabs(moved - 1.1) < 1e-3);
  require(std::fabs(updated(of_fp32, single) - 1.1) < 1e-4);
}

// The same fp16 input for an fp32 layer, without a region and with the two cures.
void input(const Arguments& on) {
  torch::nn::Linear linear(10, 10);
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({10}));
  linear->to(on.device);
  norm->to(on.device);
  const auto input = torch::ones({5, 10}, torch::dtype(kHalf).device(on.device));
  const auto outcome = [](auto& layer, const torch::Tensor& x) {
    torch::Tensor output;
    const std::string message = message_of([&] { output = layer->forward(x); });
    return output.defined() ? std::string(c10::toString(output.scalar_type())) : message;
  };
  const std::string refused = outcome(linear, input);
  std::printf("Linear(10, 10) of (5, 10) in fp16: %s\n", refused.c_str());
  std::printf("LayerNorm(10) of it: %s\n", outcome(norm, input).c_str());
  const auto in_fp32 = input.to(kFloat);
  std::printf("of input.to(torch::kFloat): %s, %s\n", outcome(linear, in_fp32).c_str(),
              outcome(norm, in_fp32).c_str());
  const demi::Autocast region(on.device.type(), kHalf);
  const std::string product = outcome(linear, input);
  std::printf("in a region: %s, %s\n", product.c_str(), outcome(norm, input).c_str());
  require(refused.find("dtype") != std::string::npos && product == "Half");
}

// CUDA's lists ban the op; the policy does it on a CPU.
void bce(const Arguments& on) {
  const auto logits = torch::full({4}, 12.0, on.device), target = torch::zeros({4}, on.device);
  const demi::Autocast region(
      on.device.type(),
      {.dtype = on.dtype,
       .policy = demi::OpPolicy().set("binary_cross_entropy", demi::OpCategory::banned)});
  const auto probability = torch::sigmoid(logits.to(on.dtype));
  const std::string message =
      message_of([&] { torch::binary_cross_entropy(probability, target.to(on.dtype)); });
  std::printf("%s\n", message.c_str());
  print("sigmoid(12) in 16 bits", number(probability[0]));
  print("binary_cross_entropy_with_logits of a logit of 12",
        std::round(1e4 * number(torch::binary_cross_entropy_with_logits(logits, target))) / 1e4);
  require(message.find("binary_cross_entropy_with_logits") != std::string::npos);
  require(number(probability[0]) == 1);
}

// One step of SGD from the same weight, on a loss times `scale`.
torch::Tensor stepped(const Arguments& on, double scale) {
  const auto weight = torch::arange(1, 9, torch::dtype(kFloat).device(on.device)).div(8);
  weight.requires_grad_();
  demi::optim::SGD optimizer({weight}, demi::optim::SGDOptions(0.1));
  demi::GradScaler scaler(demi::GradScalerOptions{.init_scale = scale});
  scaler.scale(weight.square().mean()).backward();
  scaler.step(optimizer);
  scaler.update();
  return weight.detach();
}

void learning_rate(const Arguments& on) {
  const auto one = stepped(on, 1);
  for (const double scale : {1024.0, 65536.0}) {
    const bool same = stepped(on, scale).equal(one);
    std::printf("lr 0.1, loss x %.0f: %s\n", scale,
                same ? "the weights of loss x 1, bit for bit" : "other weights");
    require(same);
  }
}

// The loss of a batch of eight, as one batch and as two micro-batches of four.
struct Window {
  explicit Window(const Arguments& on)
      : x(torch::arange(1, 9, torch::dtype(kFloat).device(on.device))),
        weight(torch::ones({1}, torch::dtype(kFloat).device(on.device)).requires_grad_()),
        optimizer({weight}, demi::optim::SGDOptions(0.5)) {}
  torch::Tensor loss(int first, int last) const {
    return (weight * x.slice(0, first, last)).mean();
  }
  double gradient() { return number(optimizer.unscaled_grad(weight)); }

  torch::Tensor x, weight;
  demi::optim::SGD optimizer;
};

void accumulation(const Arguments& on) {
  Window whole(on), divided(on), sum(on), two_scales(on);
  whole.loss(0, 8).backward();
  for (const int first : {0, 4}) (divided.loss(first, first + 4) / 2).backward();
  for (const int first : {0, 4}) sum.loss(first, first + 4).backward();
  print("gradient of a batch of 8", whole.gradient());
  print("of two micro-batches of 4, each loss / 2", divided.gradient());
  print("of two micro-batches of 4, not divided", sum.gradient());
  require(whole.gradient() == 4.5 && divided.gradient() == 4.5 && sum.gradient() == 9);

  // The scale grows between the micro-batches, though no step was taken.
  demi::GradScaler scaler(demi::GradScalerOptions{.init_scale = 1024, .growth_interval = 1});
  scaler.scale(two_scales.loss(0, 4) / 2).backward();
  scaler.unscale_(two_scales.optimizer);
  scaler.update();  // wrong: once a step, not once a micro-batch
  scaler.scale(two_scales.loss(4, 8) / 2).backward();
  scaler.unscale_(two_scales.optimizer);
  print("unscaled and updated after each micro-batch", two_scales.gradient());
  require(two_scales.gradient() != 4.5);

  Window window(on);
  demi::GradScaler once;
  for (const int first : {0, 4}) once.scale(window.loss(first, first + 4) / 2).backward();
  once.unscale_(window.optimizer);
  print("one scale for the window, unscaled once", window.gradient());
  const std::string message = message_of([&] { once.unscale_(window.optimizer); });
  std::printf("%s\n", message.c_str());
  require(window.gradient() == 4.5 && message.find("already") != std::string::npos);
}

struct Pitfall {
  std::string_view name;
  void (*show)(const Arguments&);
};

constexpr Pitfall kPitfalls[] = {
    {"underflow", underflow},
    {"overflow", overflow},
    {"swamping", swamping},
    {"stagnation", stagnation},
    {"input", input},
    {"bce", bce},
    {"learning-rate", learning_rate},
    {"accumulation", accumulation},
};

}  // namespace

int main(int argc, char** argv) {
  for (const Pitfall& pitfall : kPitfalls) {
    if (argc != 2 || pitfall.name != argv[1]) continue;
    pitfall.show({torch::kCPU, kHalf});
    return failed ? 1 : 0;
  }
  const Arguments on = read_arguments(argc, argv, kHalf);
  for (const Pitfall& pitfall : kPitfalls) {
    std::printf("\n%s\n", pitfall.name.data());
    const bool sound = !failed;
    pitfall.show(on);
    if (sound && failed) std::printf("this is not as it should be: %s\n", pitfall.name.data());
  }
  return failed ? 1 : 0;
}
