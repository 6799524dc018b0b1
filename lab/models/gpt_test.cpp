#include "lab/models/gpt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "demi/autocast/autocast.h"
#include "demi/checkpoint/safetensors.h"
#include "demi/core/error.h"
#include "demi/core/source_dir_testing.h"
#include "lab/models/gpt_model.h"
#include "lab/models/registry.h"

namespace demi::models {
namespace {

struct FileCase {
  const char* name;
  GPTForm form;
  bool bias;
  int64_t key_heads;
};

void expect_near(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  EXPECT_LE((got - want).abs().max().item<double>(), 1e-5) << what;
}

class WrittenOut : public testing::TestWithParam<FileCase> {};
INSTANTIATE_TEST_SUITE_P(Files, WrittenOut,
                         testing::Values(FileCase{"gpt2", GPTForm::gpt2, true, 4},
                                         FileCase{"gpt2_no_bias", GPTForm::gpt2, false, 4},
                                         FileCase{"llama", GPTForm::llama, false, 2},
                                         FileCase{"nanochat", GPTForm::nanochat, false, 2}),
                         [](const auto& info) { return std::string(info.param.name); });

// The files are written by tests/fixtures/transformer/make.py, in FP64.
TEST_P(WrittenOut, HasPythonsOutputsLossAndGradients) {
  const auto file = checkpoint::load_safetensors(source_dir() / "tests/fixtures/transformer" /
                                                 (std::string(GetParam().name) + ".safetensors"));
  const auto of = [&](const std::string& name) { return file.tensors.at(name); };
  GPT model(GPTOptions{.vocabulary = 11,
                       .context = 10,
                       .width = 8,
                       .layers = 2,
                       .heads = 4,
                       .key_heads = GetParam().key_heads,
                       .form = GetParam().form,
                       .bias = GetParam().bias});
  std::size_t weights = 0;
  {
    const torch::NoGradGuard no_grad;
    for (auto& item : model->named_parameters()) {
      item.value().copy_(of("weight." + item.key()));
      ++weights;
    }
  }
  std::size_t written = 0;
  for (const auto& [name, tensor] : file.tensors) written += name.starts_with("weight.");
  EXPECT_EQ(weights, written);
  const auto starts = file.tensors.count("cu_seqlens") ? of("cu_seqlens") : at::Tensor();
  expect_near(model->forward(of("tokens"), starts), of("logits"), "logits");
  const auto loss = model->loss(of("tokens"), of("targets"), starts);
  expect_near(loss, of("loss"), "loss");
  loss.backward();
  for (const auto& item : model->named_parameters())
    expect_near(item.value().grad(), of("gradient." + item.key()), item.key());
}

int64_t count(const GPTOptions& options) { return parameter_count(*GPT(options)); }

TEST(GPT, HasNanoGptsNumberOfParameters) {
  const GPTOptions characters{
      .vocabulary = 65, .context = 256, .width = 384, .layers = 6, .heads = 6, .bias = false};
  EXPECT_EQ(count(characters), 10'745'088);
  EXPECT_EQ(
      count(
          {.vocabulary = 65, .context = 64, .width = 128, .layers = 4, .heads = 4, .bias = false}),
      804'096);
  EXPECT_EQ(count({}), 124'439'808);
}

// By hand: 4 (4 128^2 + 2 128 512) + 65 128 weights of products; nanoGPT's estimate (model.py,
// estimate_mfu) counts biases and norms as well.
TEST(GPT, CountsTheFlopOfATokenInTraining) {
  const GPTOptions characters{
      .vocabulary = 65, .context = 64, .width = 128, .layers = 4, .heads = 4, .bias = false};
  EXPECT_EQ(training_flop(characters, 64), 6 * 794'752.0 + 12 * 4 * 64 * 128);
  const double nanogpt = 6.0 * (124'439'808 - 1024 * 768) + 12.0 * 12 * 768 * 1024;
  EXPECT_NEAR(training_flop({}, 1024) / nanogpt, 1, 0.002);
}

// A second way: the module's own matrices.
TEST(GPT, CountsEachMatrixOfEachForm) {
  for (const GPTForm form : {GPTForm::gpt2, GPTForm::llama, GPTForm::nanochat})
    for (const int64_t key_heads : {0, 2})
      for (const bool tied : {false, true}) {
        const GPTOptions options{.vocabulary = 50,
                                 .context = 8,
                                 .width = 24,
                                 .layers = 3,
                                 .heads = 4,
                                 .key_heads = key_heads,
                                 .form = form,
                                 .tied_head = tied};
        double weights = tied ? 50 * 24 : 0;
        for (const auto& item : GPT(options)->named_parameters())
          if (item.value().dim() == 2 && item.key() != "tokens.weight" &&
              item.key() != "positions.weight")
            weights += static_cast<double>(item.value().numel());
        EXPECT_EQ(training_flop(options, 7), 6 * weights + 12 * 3 * 7 * 24)
            << int(form) << ' ' << key_heads << ' ' << tied;
      }
}

TEST(GPT, HasItsInitialWeights) {
  torch::manual_seed(1);
  GPT model(GPTOptions{.vocabulary = 300, .context = 64, .width = 128, .layers = 8, .heads = 4});
  const auto all = model->named_parameters();
  const auto deviation = [&](const char* name) { return all[name].std().item<double>(); };
  EXPECT_NEAR(deviation("tokens.weight"), 0.02, 5e-4);
  EXPECT_NEAR(deviation("positions.weight"), 0.02, 1e-3);
  EXPECT_NEAR(deviation("blocks.3.attention.qkv.weight"), 0.02, 5e-4);
  EXPECT_NEAR(deviation("blocks.3.attention.out.weight"), 0.005, 2e-4);
  EXPECT_NEAR(deviation("blocks.3.feed_forward.down.weight"), 0.005, 2e-4);
  EXPECT_EQ(all["blocks.3.attention.qkv.bias"].abs().max().item<double>(), 0);
  EXPECT_EQ(all["blocks.3.norm1.weight"].min().item<double>(), 1);
}

TEST(GPT, DropsOutEmbeddings) {
  GPT model(
      GPTOptions{.vocabulary = 5, .context = 4, .width = 8, .layers = 1, .heads = 2, .dropout = 1});
  // All that is added is dropped: the last norm of 0 is its bias.
  EXPECT_EQ(model->hidden(torch::zeros({1, 4}, torch::kLong)).abs().max().item<double>(), 0);
}

// Logits of the next token, one piece after the other, are those of the whole forward.
TEST(GPT, GoesOnFromACache) {
  const torch::NoGradGuard no_grad;
  for (const auto form : {GPTForm::gpt2, GPTForm::llama, GPTForm::nanochat})
    for (const bool in_region : {false, true}) {
      torch::manual_seed(3);
      GPT model(GPTOptions{.vocabulary = 11,
                           .context = 12,
                           .width = 16,
                           .layers = 3,
                           .heads = 4,
                           .key_heads = 2,
                           .form = form});
      // Larger weights, so that what is attended to decides.
      for (auto& parameter : model->parameters())
        if (parameter.dim() == 2) parameter.mul_(20);
      const auto tokens = torch::randint(0, 11, {2, 12}, torch::kLong);
      const Autocast region(torch::kCPU, {.dtype = torch::kBFloat16, .enabled = in_region});
      const auto all = model->forward(tokens).to(torch::kFloat);
      auto cache = model->new_cache();
      int64_t end = 0;
      for (const int64_t piece : {5, 1, 1, 4, 1}) {
        const auto got = model->next(tokens.narrow(1, end, piece), cache).to(torch::kFloat);
        end += piece;
        const auto want = all.select(1, end - 1);
        EXPECT_LE(((got - want).norm() / want.norm()).item<double>(), in_region ? 5e-2 : 1e-5)
            << int(form) << " after " << end;
      }
      EXPECT_THROW(model->next(tokens.narrow(1, 0, 1), cache), UsageError) << "beyond the context";
      for (auto& layer : cache) layer.clear();
      EXPECT_THROW(model->next(tokens.narrow(1, 0, 0), cache), UsageError);
      cache.pop_back();
      EXPECT_THROW(model->next(tokens, cache), UsageError) << "of another model";
    }
}

// nanochat's cap, 15 tanh(x / 15), is computed in FP64 where the model is.
TEST(GPT, CapsLogitsOfFP64InFP64) {
  torch::manual_seed(4);
  GPT model(GPTOptions{.vocabulary = 7,
                       .context = 8,
                       .width = 8,
                       .layers = 1,
                       .heads = 2,
                       .form = GPTForm::nanochat});
  model->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  for (auto& weight : model->parameters()) weight.normal_();
  const auto logits = model->forward(torch::arange(8).remainder(7).unsqueeze(0));
  ASSERT_EQ(logits.scalar_type(), torch::kDouble);
  EXPECT_FALSE(logits.equal(logits.to(torch::kFloat).to(torch::kDouble)));
  EXPECT_LE(logits.abs().max().item<double>(), 15);
}

TEST(GPT, LearnsASequenceInEachPrecision) {
  const auto text = torch::arange(33).remainder(7).unsqueeze(0);
  const auto tokens = text.slice(1, 0, 32), targets = text.slice(1, 1, 33);
  for (const auto form : {GPTForm::gpt2, GPTForm::llama, GPTForm::nanochat})
    for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
      torch::manual_seed(2);
      GPT model(GPTOptions{
          .vocabulary = 7, .context = 32, .width = 32, .layers = 2, .heads = 4, .form = form});
      torch::optim::Adam adam(model->parameters(), 1e-2);
      double last = 0;
      for (int step = 0; step < 25; ++step) {
        adam.zero_grad();
        at::Tensor loss;
        {
          const Autocast region(torch::kCPU,
                                {.dtype = torch::kBFloat16, .enabled = dtype == torch::kBFloat16});
          loss = model->loss(tokens, targets);
        }
        loss.backward();
        adam.step();
        last = loss.item<double>();
      }
      EXPECT_LT(last, 0.5) << int(form);  // of log 7 = 1.95 at the start
    }
}

TEST(GPT, RefusesWhatDoesNotFit) {
  GPT model(GPTOptions{.vocabulary = 5, .context = 4, .width = 8, .layers = 1, .heads = 2});
  EXPECT_THROW(model->forward(torch::zeros({1, 5}, torch::kLong)), UsageError);
  EXPECT_THROW(model->forward(torch::zeros({4}, torch::kLong)), UsageError);
  EXPECT_THROW(GPT(GPTOptions{.width = 10, .heads = 3}), UsageError);
  EXPECT_THROW(GPT(GPTOptions{.vocabulary = 0}), UsageError);
  EXPECT_THROW(gpt_options({.settings = {{"block", "gpt3"}}}), UsageError);
  EXPECT_EQ(gpt_options({.settings = {{"block", "nanochat"}}}).form, GPTForm::nanochat);
}

}  // namespace
}  // namespace demi::models
