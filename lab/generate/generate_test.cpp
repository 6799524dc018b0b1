#include "lab/generate/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "demi/autocast/autocast.h"
#include "demi/core/error.h"
#include "lab/workload/saved_network.h"

namespace demi::generate {
namespace {

using ::testing::HasSubstr;

Model small_model(models::GPTForm form, const std::string& precision = "fp32") {
  torch::manual_seed(4);
  settings::Config config;
  config.model = "gpt";
  config.data = "text";
  Model model{.run = workload::resolve_saved(config, precision, "cpu")};
  model.network = models::GPT(models::GPTOptions{.vocabulary = 13,
                                                 .context = 12,
                                                 .width = 16,
                                                 .layers = 2,
                                                 .heads = 4,
                                                 .key_heads = 2,
                                                 .form = form});
  const torch::NoGradGuard no_grad;
  // Larger weights, so that what is attended to decides.
  for (auto& parameter : model.network->parameters())
    if (parameter.dim() == 2) parameter.mul_(20);
  model.network->eval();
  return model;
}

std::vector<int32_t> written(const Model& model, const std::vector<int32_t>& prompt,
                             const Options& options) {
  std::vector<int32_t> tokens;
  write(model, prompt, options, [&](int32_t token) {
    tokens.push_back(token);
    return true;
  });
  return tokens;
}

/// The truth: nanoGPT's loop over the whole forward, of which the last token counts.
std::vector<int32_t> by_whole_forward(const Model& model, std::vector<int32_t> text,
                                      const Options& options) {
  const torch::NoGradGuard no_grad;
  const std::size_t first = text.size();
  for (int64_t i = 0; i < options.length; ++i) {
    const auto all = torch::tensor(std::vector<int64_t>(text.begin(), text.end()));
    const auto window = all.slice(0, std::max<int64_t>(0, all.numel() - 12)).unsqueeze(0);
    models::GPT network = model.network;
    const auto logits = network->forward(window).select(1, -1).flatten().contiguous();
    const auto* values = logits.const_data_ptr<float>();
    text.push_back(options.sampling.temperature == 0
                       ? int32_t(logits.argmax().item<int64_t>())
                       : draw({values, 13}, options.sampling, options.sample, all.numel()));
  }
  return {text.begin() + std::ptrdiff_t(first), text.end()};
}

// Up to the context of 12 tokens, over it, and with a prompt that is longer.
TEST(Generate, IsTheWholeForwardTokenForToken) {
  for (const auto form :
       {models::GPTForm::gpt2, models::GPTForm::llama, models::GPTForm::nanochat}) {
    const Model model = small_model(form);
    for (const std::size_t prompt_size : {1, 5, 20}) {
      std::vector<int32_t> prompt;
      for (std::size_t i = 0; i < prompt_size; ++i) prompt.push_back(int32_t(i * i % 13));
      for (const double temperature : {0.0, 1.0}) {
        Options options{.sampling = {.temperature = temperature}, .length = 18, .sample = 1};
        const auto want = by_whole_forward(model, prompt, options);
        EXPECT_EQ(written(model, prompt, options), want) << int(form) << " " << prompt_size;
        options.cache = false;
        EXPECT_EQ(written(model, prompt, options), want) << "without a cache";
      }
    }
  }
}

// A text is the same whether it is written at once or goes on from its first part.
TEST(Generate, GoesOnAsIfItHadNotStopped) {
  const Model model = small_model(models::GPTForm::llama);
  const std::vector<int32_t> prompt{3, 1};
  const auto whole = written(model, prompt, {.length = 20});
  std::vector<int32_t> start = prompt;
  start.insert(start.end(), whole.begin(), whole.begin() + 7);
  const auto rest = written(model, start, {.length = 13});
  EXPECT_EQ(rest, std::vector<int32_t>(whole.begin() + 7, whole.end()));
  EXPECT_EQ(written(model, prompt, {.length = 20}), whole);
  EXPECT_NE(written(model, prompt, {.sampling = {.seed = 5}, .length = 20}), whole);
  EXPECT_NE(written(model, prompt, {.length = 20, .sample = 1}), whole);
}

TEST(Generate, StopsWhenItIsTold) {
  const Model model = small_model(models::GPTForm::gpt2);
  int calls = 0;
  write(model, std::vector<int32_t>{1}, {.length = 20}, [&](int32_t) { return ++calls < 3; });
  EXPECT_EQ(calls, 3);
}

// The cache has the dtype of the run's keys, and the region of the caller does not hold.
TEST(Generate, RunsInEachPrecision) {
  for (const char* precision : {"fp32", "bf16", "fp16", "bf16-true", "fp64"}) {
    Model model = small_model(models::GPTForm::llama, precision);
    if (!model.run.spec.precision.is_mixed()) model.network->to(model.run.spec.precision.weights);
    const auto tokens = written(model, {1, 2}, {.length = 16});
    EXPECT_EQ(tokens.size(), 16U) << precision;
    const Autocast region(torch::kCPU, torch::kBFloat16);
    EXPECT_EQ(written(model, {1, 2}, {.length = 16}), tokens) << precision;
  }
}

std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing thrown";
}

TEST(Generate, ReadsNumbersOfTokens) {
  const Model model = small_model(models::GPTForm::gpt2);
  EXPECT_THAT(parse_tokens(model, " 0, 12,\n7 7\r\n"), ::testing::ElementsAre(0, 12, 7, 7));
  const auto wrong = [&](const std::string& text) {
    return refusal([&] { parse_tokens(model, text); });
  };
  for (const char* value : {"13", "-1", "1.5", "x", "99999999999999999999", "+1", "0x1"})
    EXPECT_THAT(wrong(std::string("0,1,") + value),
                ::testing::AllOf(HasSubstr("number 2"), HasSubstr(value), HasSubstr("0 to 12")));
  EXPECT_THAT(wrong(" ,\n"), HasSubstr("no numbers"));
  EXPECT_THAT(refusal([&] { tokens_of(model, "a"); }), HasSubstr("--prompt-tokens"));
}

TEST(Generate, RefusesWhatDoesNotFit) {
  const Model model = small_model(models::GPTForm::gpt2);
  const auto wrong = [&](const std::vector<int32_t>& prompt, const Options& options) {
    return refusal([&] { written(model, prompt, options); });
  };
  EXPECT_THAT(wrong({}, {}), HasSubstr("the prompt has no tokens"));
  EXPECT_THAT(wrong({1}, {.length = 0}), HasSubstr("--length"));
  EXPECT_THAT(wrong({1}, {.length = -1}), HasSubstr("--length"));
  EXPECT_THAT(wrong({1}, {.sample = -1}), HasSubstr("sample"));
  EXPECT_THAT(wrong({1}, {.sampling = {.top_k = 0}}), HasSubstr("--top-k"));
  const torch::NoGradGuard no_grad;
  model.network->parameters().front().fill_(NAN);
  EXPECT_THAT(wrong({1}, {}), HasSubstr("NaN"));
}

}  // namespace
}  // namespace demi::generate
