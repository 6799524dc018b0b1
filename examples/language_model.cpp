// A language model on a text: its characters as tokens, windows of them, demi::models::GPT in mixed
// precision, and text that it writes, each token drawn from its logits.
//
//     language_model [DEVICE [DTYPE [FILE]]]
//
// Without FILE: demi's licence. For byte pairs and token files see lab/data/token_set.h.
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "demi/demi.h"
#include "examples/arguments.h"
#include "lab/data/token_set.h"
#include "lab/data/token_windows.h"
#include "lab/generate/sampling.h"
#include "lab/models/gpt.h"
#include "lab/tokens/tokenizer.h"

namespace {

using demi::data::Batch;
using demi::models::GPT;

constexpr int64_t kContext = 64;

// Nats a token, over windows that cover the text once.
double test_loss(GPT& model, const demi::data::TokenSpan& text, torch::Device device) {
  const torch::NoGradGuard no_grad;
  const demi::data::ConsecutiveWindows windows(text, kContext, {.batch_size = 32});
  double sum = 0;
  for (int64_t i = 0; i < windows.batches(); ++i) {
    const Batch batch = windows.batch(0, i);
    sum += model->loss(batch.input.to(device), batch.target.to(device)).item<double>();
  }
  return sum / static_cast<double>(windows.batches());
}

// Keys and values of the tokens so far are kept: each new token is one step.
std::string written(GPT& model, const demi::tokens::Tokenizer& tokenizer, const std::string& prompt,
                    torch::Device device) {
  const torch::NoGradGuard no_grad;
  std::vector<int32_t> text = tokenizer.encode(prompt);
  torch::Tensor next = torch::tensor(text).to(torch::kLong).unsqueeze(0);
  demi::models::GPTImpl::Cache cache = model->new_cache();
  while (std::ssize(text) < kContext) {
    const torch::Tensor logits =
        model->next(next.to(device), cache).to(torch::kCPU, torch::kFloat).contiguous();
    const std::span<const float> values(logits.const_data_ptr<float>(),
                                        static_cast<std::size_t>(logits.numel()));
    text.push_back(demi::generate::draw(values, {.temperature = 0.8, .top_k = 10},
                                        /*sample=*/0, /*position=*/std::ssize(text)));
    next = torch::full({1, 1}, text.back(), torch::kLong);
  }
  return tokenizer.decode(text);
}

}  // namespace

int main(int argc, char** argv) {
  const torch::Device device = device_named(argc > 1 ? argv[1] : "cpu");
  const torch::Dtype dtype = dtype_named(argc > 2 ? argv[2] : "bf16");
  const demi::data::TokenSet set = demi::data::read_token_texts(
      argc > 3 ? argv[3] : DEMI_EXAMPLES "/../LICENSE", /*test=*/"", "characters");
  const demi::data::RandomWindows windows(
      set.train, {.context = kContext, .batch_size = 16, .batches = 200, .seed = 1});

  torch::manual_seed(0);
  GPT model(demi::models::GPTOptions{
      .vocabulary = set.vocabulary, .context = kContext, .width = 64, .layers = 2, .heads = 4});
  model->to(device);
  demi::optim::AdamW optimizer(model->parameters(), demi::optim::AdamWOptions(3e-3));
  demi::GradScaler scaler({.enabled = dtype == torch::kHalf});
  for (int64_t step = 0; step < windows.batches(); ++step) {
    const Batch batch = windows.batch(/*epoch=*/0, step);
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      const demi::Autocast region(device.type(), dtype);
      loss = model->loss(batch.input.to(device), batch.target.to(device));
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    if (step % 50 == 0)
      std::printf("step %3lld  loss %.3f\n", static_cast<long long>(step), loss.item<double>());
  }
  model->eval();
  const double loss = test_loss(model, set.test, device);
  const double guessed = std::log(static_cast<double>(set.vocabulary));
  std::printf("test loss %.3f; %.3f of guessing among %lld characters\n", loss, guessed,
              static_cast<long long>(set.vocabulary));
  std::printf("%s\n", written(model, *set.tokenizer, "The ", device).c_str());
  return argc > 3 || loss < 0.75 * guessed ? EXIT_SUCCESS : EXIT_FAILURE;
}
