// A GPT of one's own: blocks of demi/nn, recomputed in backward, the loss by pieces, AdamW, trained
// in mixed precision on sentences whose entropy is known, and a continuation by the model.
//
//     gpt [DEVICE [DTYPE]]
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

constexpr int64_t kBytes = 128, kContext = 48, kWidth = 64, kRows = 16, kSteps = 200;

struct GPTImpl : torch::nn::Module {
  GPTImpl() {
    register_module("tokens", tokens);
    for (int i = 0; i < 2; ++i)
      blocks->push_back(demi::nn::TransformerBlock(demi::nn::TransformerBlockOptions{
          .width = kWidth, .heads = 4, .norm = demi::nn::NormKind::rms_norm, .bias = false}));
    register_module("blocks", blocks);
    register_module("norm", norm);
    const torch::NoGradGuard no_grad;
    tokens->weight.normal_(0, 0.02);
  }
  // Tokens (N, T) to what the head reads, (N, T, width). The head is the embedding's weight.
  torch::Tensor forward(const torch::Tensor& input) {
    const auto positions = torch::arange(input.size(1), input.options());
    const demi::nn::TokenContext context{.rotary = demi::nn::rotary_angles(positions, kWidth / 4)};
    torch::Tensor x = tokens->forward(input);
    // Backward runs each block once more instead of keeping what is inside.
    for (const auto& block : *blocks)
      x = demi::recompute(
          [block, context](const torch::Tensor& y) {
            return block->as<demi::nn::TransformerBlockImpl>()->forward(y, context);
          },
          x);
    return norm->forward(x);
  }
  torch::nn::Embedding tokens{torch::nn::EmbeddingOptions(kBytes, kWidth)};
  torch::nn::ModuleList blocks;
  demi::nn::Norm norm{demi::nn::NormOptions{.width = kWidth}};
};
TORCH_MODULE(GPT);

// "the cat sees the dog.\n": 3 x 2 x 3 sentences, each as likely.
torch::Tensor sentences(int64_t count) {
  const char *animals[] = {"cat", "dog", "bird"}, *verbs[] = {" sees", " likes"};
  std::string text;
  for (int64_t i = 0; i < count; ++i)
    text += std::string("the ") + animals[std::rand() % 3] + verbs[std::rand() % 2] + " the " +
            animals[std::rand() % 3] + ".\n";
  return torch::tensor(std::vector<uint8_t>(text.begin(), text.end())).to(torch::kLong);
}

}  // namespace

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kBFloat16);
  torch::manual_seed(0);
  const torch::Tensor text = sentences(500).to(device);
  GPT model;
  model->to(device);
  demi::optim::AdamW adamw(
      with_decay_by_rule(*model, demi::optim::AdamWOptions(3e-3).betas({0.9, 0.99})));
  demi::GradScaler scaler({.enabled = dtype == torch::kHalf});
  demi::optim::lr::Scheduler schedule(adamw, demi::optim::lr::cosine(kSteps));
  demi::loop::Step step(
      {{model.get()}, {&adamw}, &scaler, {&schedule}},
      {.precision = demi::parse_precision(dtype == torch::kHalf ? "fp16" : "bf16"),
       .device = device,
       .clip_norm = 1});
  torch::Tensor loss;
  for (int64_t i = 0; i < kSteps; ++i) {
    const auto starts = torch::randint(text.size(0) - kContext, {kRows, 1}).to(device);
    const auto rows = text.index({starts + torch::arange(kContext + 1, starts.options())});
    const auto input = rows.slice(1, 0, kContext), target = rows.slice(1, 1).contiguous();
    loss = step.batch(
        [&] {
          return demi::linear_cross_entropy(model->forward(input), model->tokens->weight, target);
        },
        [](const torch::Tensor& mean) { return mean; });
    step.finish();
    if (i % 50 == 0) std::printf("step %3ld  loss %.3f\n", long(i), loss.item<double>());
  }
  // log(18) nats a sentence of 23.2 characters on average; the first sentence of a row has no
  // beginning.
  std::printf("step %3ld  loss %.3f; the entropy of a sentence is %.3f a character\n", long(kSteps),
              loss.item<double>(), std::log(18.0) / 23.17);

  const demi::Autocast region(device.type(), dtype);
  const torch::NoGradGuard no_grad;
  torch::Tensor tokens = text.slice(0, 0, 8).unsqueeze(0);
  for (int i = 0; i < 40; ++i) {
    const auto last = model->forward(tokens).select(1, -1);
    tokens = torch::cat({tokens, torch::linear(last, model->tokens->weight).argmax(-1, true)}, 1);
  }
  for (int64_t i = 0; i < tokens.size(1); ++i) std::putchar(tokens[0][i].item<int>());
  std::printf("\n");
  return loss.item<double>() < 0.4 ? EXIT_SUCCESS : EXIT_FAILURE;
}
