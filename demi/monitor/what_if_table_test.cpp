// Small networks, of which some cannot train in fp16 and some can: what what-if says of the FP32
// run, against what the fp16 run does.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "demi/autocast/apply.h"
#include "demi/monitor/what_if.h"
#include "demi/optim/sgd.h"
#include "demi/train/testing.h"
#include "demi/train/trainer.h"

namespace demi::monitor::what_if_table {
namespace {

using at::Tensor;
using train::testing::Rows;

constexpr int64_t kFeatures = 8, kRows = 24, kBatch = 4, kSteps = 30, kToleratedSkips = 3;
constexpr double kScale = 256;  // low, so that a sound run hardly skips until it has found its own
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// `first` hands on what comes in; `body` is what a case is about. Layers that it does not use have
// no gradients.
struct SmallImpl : torch::nn::Module {
  using Body = std::function<Tensor(SmallImpl&, const Tensor&)>;
  torch::nn::Linear first{register_module("first", torch::nn::Linear(kFeatures, kFeatures))};
  torch::nn::Linear small{register_module("small", torch::nn::Linear(kFeatures, kFeatures))};
  torch::nn::Conv1d conv{
      register_module("conv", torch::nn::Conv1d(torch::nn::Conv1dOptions(1, 1, 3).padding(1)))};
  torch::nn::LSTM lstm{register_module("lstm", torch::nn::LSTM(kFeatures, kFeatures))};
  torch::nn::GRU gru{register_module("gru", torch::nn::GRU(kFeatures, kFeatures))};
  torch::nn::LayerNorm layer_norm{register_module(
      "layer_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kFeatures})))};
  torch::nn::BatchNorm1d batch_norm{
      register_module("batch_norm", torch::nn::BatchNorm1d(kFeatures))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(kFeatures, 1))};
  Body body;

  explicit SmallImpl(Body with) : body(std::move(with)) {
    const torch::NoGradGuard no_grad;
    first->weight.copy_(at::eye(kFeatures));
    first->bias.zero_();
  }
  Tensor forward(const Tensor& x) { return head->forward(body(*this, first->forward(x))); }
};
TORCH_MODULE(Small);

struct Case {
  const char* name;
  SmallImpl::Body body;
  std::function<void(SmallImpl&)> prepare = [](SmallImpl&) {};
  double input = 1;   // factor of the rows
  double target = 0;  // of all rows
  double learning_rate = 1e-4;
};

Small model_of(const Case& one) {
  torch::manual_seed(5);
  Small model(one.body);
  one.prepare(*model);
  return model;
}

// Rows of the normal distribution, of which some are 0, as behind a ReLU.
Rows rows_of(const Case& one) {
  torch::manual_seed(6);
  Tensor x = at::randn({kRows, kFeatures});
  x.slice(0, 0, kRows, 5).zero_();
  return {x * one.input, at::full({kRows, 1}, one.target), kBatch};
}

train::TrainerOptions options_of(const Case& one, torch::nn::Module& model, const char* precision,
                                 int64_t steps) {
  train::TrainerOptions options;
  options.precision = parse_precision(precision);
  options.loss = train::Loss::mse;
  options.optimizers = {
      std::make_shared<optim::SGD>(model.parameters(), optim::SGDOptions(one.learning_rate))};
  options.max_steps = steps;
  options.epochs = kSteps * kBatch / kRows;
  options.give_up_after = 0;
  options.scaler.init_scale = kScale;
  return options;
}

// The fault of the fp16 run; "" if it trains. `settles`: the scale may take as long as it needs to
// find its place, if it has found it ten steps before the end.
std::string truth_of(const Case& one, const OpPolicy& policy = {}, bool settles = false) {
  Small model = model_of(one);
  demi::apply(policy, *model);
  train::TrainerOptions options = options_of(one, *model, "fp16", kSteps);
  options.op_policy = policy;
  try {
    const train::History history = train::Trainer(train::network(model), options).fit(rows_of(one));
    if (!std::isfinite(history.steps.back().loss)) return "ends in NaN";
    const auto is_skipped = [](const loop::StepMetrics& step) { return step.skipped; };
    const bool settled = std::none_of(history.steps.end() - 10, history.steps.end(), is_skipped);
    if (settles ? !settled : history.skipped_steps > kToleratedSkips)
      return "skips " + std::to_string(history.skipped_steps);
  } catch (const std::exception& error) {
    return std::string("throws: ") + std::string(error.what()).substr(0, 40);
  }
  return "";
}

WhatIfResult ask(const Case& one) {
  Small model = model_of(one);
  train::Trainer trainer(train::network(model), options_of(one, *model, "fp32", kRows / kBatch));
  const auto what_if = std::make_shared<WhatIf>(WhatIfOptions{.loss_scale = kScale});
  trainer.add(what_if);
  trainer.fit(rows_of(one));
  return what_if->result();
}

std::string words_of(const WhatIfResult& result) {
  if (result.uncured) return "cannot: " + cause_of(*result.uncured);
  if (result.diverged) return "diverges";
  std::string text;
  for (const Cure& cure : result.cures)
    text += (text.empty() ? "" : ", ") + to_string(cure, result.format);
  return text.empty() ? "sound" : text;
}

Tensor attention(const Tensor& h, double factor, const std::function<Tensor(const Tensor&)>& mask) {
  const Tensor q = h * factor;
  return mask(q.matmul(q.t())).softmax(1).matmul(h);
}

Tensor rms(const Tensor& x, double epsilon) {
  return x * at::rsqrt((x * x).mean(1, true) + epsilon);
}

Tensor later(const Tensor& h) {  // a triangle, without the diagonal's row
  return at::ones({h.size(0), h.size(0)}, at::kBool).triu(1);
}

// fp16 cannot train these.
std::vector<Case> planted() {
  const auto same = [](SmallImpl&, const Tensor& h) { return h; };
  const auto nothing = [](SmallImpl&) {};
  return {
      // Overflow.
      {"attention by hand",
       [](SmallImpl&, const Tensor& h) {
         return attention(h, 300, [](const Tensor& s) { return s; });
       }},
      {"attention, all but one masked",
       [](SmallImpl&, const Tensor& h) {
         return attention(h, 1, [&](const Tensor& s) {
           return s + (at::ones({h.size(0), h.size(0)}, at::kBool)).to(s.dtype()) * -1e9;
         });
       }},
      {"masked_fill of -1e9 in a whole row",
       [](SmallImpl&, const Tensor& h) {
         return attention(h, 1, [&](const Tensor& s) {
           return s.masked_fill(at::ones({h.size(0), h.size(0)}, at::kBool), -1e9);
         });
       }},
      {"einsum",
       [](SmallImpl&, const Tensor& h) {
         return at::einsum("ij,kj->ik", {h * 300, h * 300}).softmax(1).matmul(h);
       }},
      {"bmm",
       [](SmallImpl&, const Tensor& h) {
         const Tensor q = (h * 300).unsqueeze(0);
         return at::bmm(q, q.transpose(1, 2)).squeeze(0).softmax(1).matmul(h);
       }},
      {"x * x", [](SmallImpl&, const Tensor& h) { return (h * 500) * (h * 500) * 1e-6; }},
      {"square", [](SmallImpl&, const Tensor& h) { return (h * 500).square() * 1e-6; }},
      {"pow", [](SmallImpl&, const Tensor& h) { return (h * 50).pow(3) * 1e-5; }},
      {"var", [](SmallImpl&, const Tensor& h) { return h * (h * 1000).var(1, true, true) * 1e-7; }},
      {"variance by hand",
       [](SmallImpl&, const Tensor& h) {
         const Tensor d = h * 1000 - (h * 1000).mean(1, true);
         return d / at::sqrt((d * d).mean(1, true) + 1) + (d * d) * 1e-9;
       }},
      {"cumsum", [](SmallImpl&, const Tensor& h) { return (h.abs() * 2e4).cumsum(1) * 1e-5; }},
      {"sum", [](SmallImpl&, const Tensor& h) { return h + (h.abs() * 2e4).sum(1, true) * 1e-5; }},
      {"exp", [](SmallImpl&, const Tensor& h) { return (h + 12).exp() * 1e-6; }},
      {"softmax by hand",
       [](SmallImpl&, const Tensor& h) {
         const Tensor e = (h * 12).exp();
         return e / e.sum(1, true);
       }},
      {"softplus by hand", [](SmallImpl&, const Tensor& h) { return at::log(1 + (h * 12).exp()); }},
      {"log-sum-exp by hand",
       [](SmallImpl&, const Tensor& h) { return h * at::log((h * 12).exp().sum(1, true)); }},
      {"in place", [](SmallImpl&, Tensor h) { return h.mul_(1e6).mul_(1e-6).relu(); }},
      {"addcmul",
       [](SmallImpl&, const Tensor& h) { return at::addcmul(h, h * 500, h * 500) * 1e-6; }},
      {"weights", [](SmallImpl& m, const Tensor& h) { return m.small->forward(h) * 1e-6; },
       [](SmallImpl& m) {
         const torch::NoGradGuard no_grad;
         m.small->weight.mul_(1e6);
       }},
      {"input", same,
       [](SmallImpl& m) {
         const torch::NoGradGuard no_grad;
         m.first->weight.mul_(1e-6);
       },
       1e6, 0, 1e-14},
      {"convolution",
       [](SmallImpl& m, const Tensor& h) {
         return m.conv->forward((h * 2e4).unsqueeze(1)).squeeze(1) * 1e-6;
       },
       [](SmallImpl& m) {
         const torch::NoGradGuard no_grad;
         m.conv->weight.fill_(5);
       }},
      {"LSTM",
       [](SmallImpl& m, const Tensor& h) {
         return std::get<0>(m.lstm->forward((h * 1e3 * 1e3).unsqueeze(0))).squeeze(0);
       },
       [](SmallImpl& m) {
         const torch::NoGradGuard no_grad;
         for (Tensor& p : m.lstm->parameters()) p.mul_(1e-6);
       }},
      {"GRU",
       [](SmallImpl& m, const Tensor& h) {
         return std::get<0>(m.gru->forward((h * 1e3 * 1e3).unsqueeze(0))).squeeze(0);
       }},
      {"gradients of a loss beyond fp16", same, nothing, 1, 1e6, 1e-12},
      {"gradients on the way back",
       [](SmallImpl&, const Tensor& h) {
         return (h * 1e-2).clamp(-1e-3, 1e-3) * 1e4 + ((h * 1e-4) * 1e4 * 1e3).sin() * 1e-4;
       },
       nothing, 1, 2e4},
      // A dtype that comes from another tensor.
      {"mask.to(h.dtype())",
       [](SmallImpl&, const Tensor& h) { return h * (h > -9).to(h.dtype()) * 1e6 * 1e-6; }},
      {"full(h.options())",
       [](SmallImpl&, const Tensor& h) {
         return at::full(h.sizes(), 300.0, h.options()).square() * h * 1e-5;
       }},
      {"ones(h.options()), in place",
       [](SmallImpl&, const Tensor& h) {
         return at::ones(h.sizes(), h.options()).mul_(1e6) * h * 1e-6;
       }},
      {"arange().to(h.dtype())",
       [](SmallImpl&, const Tensor& h) {
         return at::arange(kFeatures).to(h.dtype()).mul(1e5) * h * 1e-6;
       }},
      {"scale.to(h.dtype())",
       [](SmallImpl&, const Tensor& h) {
         const Tensor scale = at::full({kFeatures}, 1e5, at::kFloat);
         return h * scale.to(h.dtype()) * 1e-5;
       }},
      {"full beyond fp16",
       [](SmallImpl&, const Tensor& h) {
         return h * at::full(h.sizes(), 1e5, h.options()) * 1e-5;
       }},
      {"to(other)",
       [](SmallImpl&, const Tensor& h) {
         const Tensor scale = at::full({kFeatures}, 1e5, at::kFloat);
         return h * scale.to(h) * 1e-5;
       }},
      // Rounding that feeds an op which is not finite everywhere.
      {"log(1 - p)",
       [](SmallImpl&, const Tensor& h) { return at::log(1 - at::sigmoid(h * 4 + 4)); }},
      {"log1p(-p)", [](SmallImpl&, const Tensor& h) { return at::log1p(-at::sigmoid(h * 4 + 4)); }},
      {"log of a probability",
       [](SmallImpl&, const Tensor& h) { return at::log(at::sigmoid(h * 2 - 16)); }},
      {"log(x + 1e-8) at 0",
       [](SmallImpl&, const Tensor& h) { return at::log(h.relu() + 1e-8) * 0.1; }},
      {"1 / (1 - p)", [](SmallImpl&, const Tensor& h) { return 1e-4 / (1 - at::sigmoid(h + 7)); }},
      {"sqrt(x * x + 1e-8) at 0",
       [](SmallImpl&, const Tensor& h) { return at::sqrt(h * h + 1e-8); }},
      {"pow(x + 1e-9, 0.5) at 0",
       [](SmallImpl&, const Tensor& h) { return (h.square() + 1e-9).pow(0.5); }},
      {"x / (|x| + 1e-8) at 0", [](SmallImpl&, const Tensor& h) { return h / (h.abs() + 1e-8); }},
      {"x / |x| by hand",
       [](SmallImpl&, const Tensor& h) { return h / at::sqrt((h * h).sum(1, true) + 1e-12); }},
      {"rsqrt of a variance of 0",
       [](SmallImpl&, const Tensor& h) {
         const Tensor d = h - h.mean(1, true);
         return d * at::rsqrt((d * d).mean(1, true) + 1e-8);
       }},
      {"RMSNorm by hand, a row of 0", [](SmallImpl&, const Tensor& h) { return rms(h, 1e-5); }},
      {"RMSNorm by hand of small numbers",
       [](SmallImpl&, const Tensor& h) { return rms(h * 1e-4, 1e-10); }},
      {"acos near 1",
       [](SmallImpl&, const Tensor& h) { return at::acos((h * 4).tanh() * (1 - 1e-4)); }},
      {"atanh(tanh)", [](SmallImpl&, const Tensor& h) { return at::atanh(at::tanh(h * 2 + 3)); }},
      {"asin near 1",
       [](SmallImpl&, const Tensor& h) { return at::asin((h * 4).sigmoid() * (1 - 1e-5)); }},
      {"logit",
       [](SmallImpl&, const Tensor& h) { return at::logit(at::sigmoid(h * 4 + 4)) * 0.1; }},
      {"distance to itself",
       [](SmallImpl&, const Tensor& h) {
         const Tensor d = h.unsqueeze(1) - h.unsqueeze(0);
         return at::sqrt(d.square().sum(2) + 1e-12).matmul(h) * 0.1;
       }},
  };
}

// fp16 trains these as they are.
std::vector<Case> sound() {
  return {
      {"a layer", [](SmallImpl& m, const Tensor& h) { return m.small->forward(h).relu(); }},
      {"layer norm", [](SmallImpl& m, const Tensor& h) { return m.layer_norm->forward(h); }},
      {"batch norm", [](SmallImpl& m, const Tensor& h) { return m.batch_norm->forward(h); }},
      {"dropout", [](SmallImpl&, const Tensor& h) { return at::dropout(h, 0.3, true); }},
      {"activations",
       [](SmallImpl&, const Tensor& h) { return at::gelu(h) + h.tanh() * h.sigmoid(); }},
      {"attention by hand",
       [](SmallImpl&, const Tensor& h) {
         return attention(h, 1, [](const Tensor& s) { return s; });
       }},
      {"attention, masked by -Inf",
       [](SmallImpl&, const Tensor& h) {
         return attention(h, 1,
                          [&](const Tensor& s) { return s.masked_fill(later(h), kMinusInfinity); });
       }},
      {"attention, masked by mask.to(h.dtype())",
       [](SmallImpl&, const Tensor& h) {
         return attention(h, 1, [&](const Tensor& s) { return s + later(h).to(s.dtype()) * -1e4; });
       }},
      {"attention of LibTorch",
       [](SmallImpl&, const Tensor& h) {
         const Tensor q = h.view({1, 1, h.size(0), kFeatures});
         return at::scaled_dot_product_attention(q, q, q).view(h.sizes());
       }},
      {"convolution",
       [](SmallImpl& m, const Tensor& h) { return m.conv->forward(h.unsqueeze(1)).squeeze(1); }},
      {"LSTM",
       [](SmallImpl& m, const Tensor& h) {
         return std::get<0>(m.lstm->forward(h.unsqueeze(0))).squeeze(0);
       }},
      {"GRU",
       [](SmallImpl& m, const Tensor& h) {
         return std::get<0>(m.gru->forward(h.unsqueeze(0))).squeeze(0);
       }},
      {"mask.to(h.dtype())", [](SmallImpl&, const Tensor& h) { return h * (h > 0).to(h.dtype()); }},
      {"full(h.options())",
       [](SmallImpl&, const Tensor& h) { return at::full(h.sizes(), 2.0, h.options()) * h; }},
      {"squares in FP32 by hand",
       [](SmallImpl&, const Tensor& h) {
         const Tensor wide = h.to(at::kFloat) * 500;
         return (wide * wide * 1e-6).to(h.dtype());
       }},
      {"a mask in FP32 by hand",
       [](SmallImpl&, const Tensor& h) { return h * (h > -9).to(at::kFloat) * 1e6 * 1e-6; }},
      {"RMSNorm in FP32 by hand",
       [](SmallImpl&, const Tensor& h) {
         return rms(h.to(at::kFloat) * 1e-4, 1e-10).to(h.dtype());
       }},
      {"RMSNorm by hand", [](SmallImpl&, const Tensor& h) { return rms(h, 1e-2); }},
      {"log(1 - p), p small",
       [](SmallImpl&, const Tensor& h) { return at::log(1 - at::sigmoid(h) * 0.5); }},
      {"sqrt(x * x + 1e-4)", [](SmallImpl&, const Tensor& h) { return at::sqrt(h * h + 1e-4); }},
      {"log_softmax", [](SmallImpl&, const Tensor& h) { return h.log_softmax(1); }},
      {"exp of what is small", [](SmallImpl&, const Tensor& h) { return (h - 2).exp(); }},
      {"cumsum", [](SmallImpl&, const Tensor& h) { return h.cumsum(1); }},
      {"in place", [](SmallImpl&, Tensor h) { return h.mul_(2).relu_(); }},
      {"x * x", [](SmallImpl&, const Tensor& h) { return h * h; }},
  };
}

TEST(WhatIfTable, NoFalseAllClear) {
  int asked = 0;
  for (const Case& one : planted()) {
    const std::string truth = truth_of(one);
    EXPECT_NE(truth, "") << one.name << " is no case: fp16 trains it";
    const WhatIfResult result = ask(one);
    std::printf("%-40s fp16 %-20s what-if: %s\n", one.name, truth.c_str(),
                words_of(result).c_str());
    EXPECT_TRUE(result.uncured || !result.cures.empty()) << one.name;
    if (!result.uncured) {
      EXPECT_EQ(truth_of(one, result.policy, true), "") << one.name << ", cured";
    }
    ++asked;
  }
  EXPECT_GE(asked, 40);
}

TEST(WhatIfTable, NoFalseAlarm) {
  int asked = 0;
  for (const Case& one : sound()) {
    const std::string truth = truth_of(one);
    EXPECT_EQ(truth, "") << one.name << " is no case: fp16 does not train it";
    const std::string words = words_of(ask(one));
    std::printf("%-40s fp16 trains; what-if: %s\n", one.name, words.c_str());
    EXPECT_EQ(words, "sound") << one.name;
    ++asked;
  }
  EXPECT_GE(asked, 20);
}

}  // namespace
}  // namespace demi::monitor::what_if_table
