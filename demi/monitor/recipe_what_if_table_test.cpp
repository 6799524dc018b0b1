// Small networks with a fault planted in them, and some without: what RecipeWhatIf says of the FP32
// run, against the gradients of a run in the recipe.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "demi/autocast/apply.h"
#include "demi/monitor/recipe_what_if.h"
#include "demi/optim/sgd.h"
#include "demi/quantization/recipe.h"
#include "demi/train/testing.h"
#include "demi/train/trainer.h"

namespace demi::monitor::recipe_table {
namespace {

using at::Tensor;
using train::testing::Rows;

constexpr int64_t kWidth = 64, kRows = 256, kBatch = 64, kTruthBatches = 20;

// DEMI_LONG: as many steps as a run of the benchmark, and every recipe.
const int64_t kSteps = std::getenv("DEMI_LONG") ? 200 : 40;

// Three layers of one width and a head, which the recipes leave out.
struct SmallImpl : torch::nn::Module {
  using Body = std::function<Tensor(SmallImpl&, const Tensor&)>;
  torch::nn::Linear first{register_module("first", torch::nn::Linear(kWidth, kWidth))};
  torch::nn::Linear second{register_module("second", torch::nn::Linear(kWidth, kWidth))};
  torch::nn::Linear third{register_module("third", torch::nn::Linear(kWidth, kWidth))};
  torch::nn::LayerNorm norm{
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(kWidth, 8))};
  Body body;

  explicit SmallImpl(Body with) : body(std::move(with)) {}
  Tensor forward(const Tensor& x) { return head->forward(body(*this, x)); }
};
TORCH_MODULE(Small);

Tensor plain(SmallImpl& m, const Tensor& x) {
  return m.third->forward(m.second->forward(m.first->forward(x).tanh()).tanh()).tanh();
}

struct Case {
  const char* name;
  SmallImpl::Body body = plain;
  std::function<void(SmallImpl&)> prepare = [](SmallImpl&) {};
  std::function<void(Tensor&, Tensor&)> rows = [](Tensor&, Tensor&) {};  // inputs and targets
  double learning_rate = 1e-2;
};

Small model_of(const Case& one) {
  torch::manual_seed(5);
  Small model(one.body);
  const torch::NoGradGuard no_grad;
  one.prepare(*model);
  return model;
}

Rows rows_of(const Case& one) {
  torch::manual_seed(6);
  Tensor x = at::randn({kRows, kWidth}), y = at::randn({kRows, 8});
  one.rows(x, y);
  return {x, y, kBatch};
}

train::TrainerOptions options_of(const Case& one, torch::nn::Module& model,
                                 std::string_view precision, int64_t steps) {
  train::TrainerOptions options;
  options.precision = parse_precision(precision);
  options.loss = train::Loss::mse;
  options.optimizers = {
      std::make_shared<optim::SGD>(model.parameters(), optim::SGDOptions(one.learning_rate))};
  options.max_steps = steps;
  options.epochs = steps * kBatch / kRows + 1;
  return options;
}

// The errors of the recipe run's gradients of weights against FP32, of the batches behind kSteps.
struct Truth : loop::StepObserver {
  std::map<std::string, double> errors;  // by layer, the mean over the batches
  void after_backward(const loop::StepView& view) override {
    if (view.step <= kSteps) return;
    std::map<std::string, Tensor> low;
    for (const auto& item : view.module.named_parameters()) {
      low[item.key()] = item.value().grad();
      item.value().mutable_grad().reset();
    }
    view.repeat({.autocast = false, .scaler = false});
    for (const auto& item : view.module.named_parameters()) {
      const Tensor exact = item.value().grad();
      item.value().mutable_grad() = low[item.key()];
      const std::string& name = item.key();
      if (!exact.defined() || exact.dim() < 2) continue;
      const double length = exact.norm().item<double>(),
                   error = (low[name] - exact).norm().item<double>();
      errors[name.substr(0, name.rfind('.'))] +=
          (length > 0 ? error / length : error) / kTruthBatches;
    }
  }
};

std::map<std::string, double> truth_of(const Case& one, std::string_view recipe,
                                       const OpPolicy& policy) {
  Small model = model_of(one);
  if (!policy.parts().empty()) demi::apply(policy, *model);
  train::Trainer trainer(train::network(model),
                         options_of(one, *model, recipe, kSteps + kTruthBatches));
  const auto truth = std::make_shared<Truth>();
  trainer.add(truth);
  trainer.fit(rows_of(one));
  unapply(*model);
  return truth->errors;
}

RecipeWhatIfResult ask(const Case& one, std::string_view recipe) {
  Small model = model_of(one);
  train::Trainer trainer(train::network(model), options_of(one, *model, "fp32", kSteps));
  const auto what_if = std::make_shared<RecipeWhatIf>(
      RecipeWhatIfOptions{.recipe = std::string(recipe), .every = kSteps / 20});
  trainer.add(what_if);
  trainer.fit(rows_of(one));
  return what_if->result();
}

// Features that are far larger than the others, and hardly used.
auto huge_columns(int64_t every, double factor) {
  return [=](Tensor& x, Tensor&) { x.slice(1, 0, kWidth, every).mul_(factor); };
}
auto hardly_used(int64_t every, double factor) {
  return [=](SmallImpl& m) { m.first->weight.slice(1, 0, kWidth, every).div_(factor); };
}

// As the rows, of which one is another one times 1 + `gap`, with the opposite target.
void opposite_pairs(Tensor& x, Tensor& y, double gap) {
  x.slice(0, 0, kRows, 2).copy_(x.slice(0, 1, kRows, 2) + gap * x.slice(0, 0, kRows, 2));
  y.slice(0, 0, kRows, 2).copy_(-y.slice(0, 1, kRows, 2));
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {.name = "sound: nothing planted"},
      {.name = "sound: all inputs large",
       .prepare = [](SmallImpl& m) { m.first->weight.mul_(1e-5); },
       .rows = [](Tensor& x, Tensor&) { x.mul_(1e5); },
       .learning_rate = 1e-12},
      {.name = "sound: all gradients small", .rows = [](Tensor&, Tensor& y) { y.mul_(1e-6); }},
      {.name = "sound: two layers",
       .body = [](SmallImpl& m,
                  const Tensor& x) { return m.second->forward(m.first->forward(x)); }},
      {.name = "sound: a large row of weights that the others outweigh",
       .prepare = [](SmallImpl& m) { m.second->weight.select(0, 0).mul_(8); }},
      {.name = "a feature 1e6 times as large",
       .prepare = hardly_used(kWidth, 1e6),
       .rows = huge_columns(kWidth, 1e6),
       .learning_rate = 1e-15},
      {.name = "a feature of 32 1e7 times as large",
       .prepare = hardly_used(32, 1e7),
       .rows = huge_columns(32, 1e7),
       .learning_rate = 1e-17},
      {.name = "a feature of 16 1e4 times as large",
       .prepare = hardly_used(16, 1e4),
       .rows = huge_columns(16, 1e4),
       .learning_rate = 1e-11},
      {.name = "a feature 300 times as large",
       .prepare = hardly_used(kWidth, 300),
       .rows = huge_columns(kWidth, 300),
       .learning_rate = 1e-8},
      {.name = "an outlier of each row, in another feature",
       .body =
           [](SmallImpl& m, const Tensor& x) {
             return m.third->forward(m.second->forward(m.first->forward(x)) * 1e-5).tanh();
           },
       .rows =
           [](Tensor& x, Tensor&) {
             for (int64_t i = 0; i < kRows; ++i) x[i][i % kWidth] *= 1e5;
           },
       .learning_rate = 1e-15},
      {.name = "a column of weights 1e7 times as large",
       .prepare = [](SmallImpl& m) { m.first->weight.select(1, 0).mul_(1e7); },
       .rows = [](Tensor& x, Tensor&) { x.select(1, 0).mul_(1e-7); },
       .learning_rate = 1e-4},
      {.name = "a row of weights 1e7 times as large",
       .body =
           [](SmallImpl& m, const Tensor& x) {
             return m.third->forward(m.second->forward(m.first->forward(x).tanh())).tanh();
           },
       .prepare =
           [](SmallImpl& m) {
             m.second->weight.select(0, 0).mul_(1e7);
             m.third->weight.select(1, 0).div_(1e7);
           },
       .learning_rate = 1e-18},
      {.name = "an offset that a norm takes away",
       .body =
           [](SmallImpl& m, const Tensor& x) {
             return m.third->forward(
                 m.second->forward(m.norm->forward(m.first->forward(x))).tanh());
           },
       .prepare = [](SmallImpl& m) { m.first->weight.mul_(0.2).add_(0.1); },
       .rows = [](Tensor& x, Tensor&) { x.add_(0.5); },
       .learning_rate = 1e-3},
      {.name = "an offset in the middle that a norm takes away",
       .body =
           [](SmallImpl& m, const Tensor& x) {
             return m.third->forward(
                 m.norm->forward(m.second->forward(m.first->forward(x).tanh() + 3)));
           },
       .prepare = [](SmallImpl& m) { m.second->weight.add_(0.05); },
       .learning_rate = 1e-3},
      {.name = "inputs that cancel each other",
       .prepare =
           [](SmallImpl& m) {
             m.first->weight.slice(1, 0, 32).copy_(-m.first->weight.slice(1, 32));
           },
       .rows = [](Tensor& x,
                  Tensor&) { x.slice(1, 0, 32).copy_(x.slice(1, 32) + 0.03 * x.slice(1, 0, 32)); },
       .learning_rate = 1e-4},
      {.name = "weights that cancel each other in the middle",
       .body =
           [](SmallImpl& m, const Tensor& x) {
             const Tensor h = m.first->forward(x).tanh().slice(1, 0, 32);
             return m.third->forward(m.second->forward(at::cat({h, h}, 1)).mul(20)).tanh();
           },
       .prepare =
           [](SmallImpl& m) {
             m.second->weight.slice(1, 0, 32).copy_(-0.95 * m.second->weight.slice(1, 32));
           },
       .learning_rate = 1e-5},
      {.name = "a difference of a layer and its input",
       .body =
           [](SmallImpl& m, const Tensor& x) {
             const Tensor h = m.first->forward(x);
             return m.third->forward((m.second->forward(h) - h).mul(20)).tanh();
           },
       .prepare =
           [](SmallImpl& m) {
             m.second->weight.mul_(0.05).add_(at::eye(kWidth));
             m.second->bias.zero_();
           },
       .learning_rate = 1e-6},
      {.name = "two rows of opposite targets",
       .rows = [](Tensor& x, Tensor& y) { opposite_pairs(x, y, 1e-2); }},
      {.name = "two rows of opposite targets, less alike",
       .rows = [](Tensor& x, Tensor& y) { opposite_pairs(x, y, 1e-1); }},
      {.name = "a sample with a target 1e7 times as large",
       .rows =
           [](Tensor& x, Tensor& y) {
             x.slice(0, 0, kRows, kBatch).mul_(1e-7);
             y.slice(0, 0, kRows, kBatch).mul_(1e7);
           },
       .learning_rate = 1e-12},
      {.name = "a steep function behind the middle",
       .body =
           [](SmallImpl& m, const Tensor& x) {
             return m.third->forward((m.second->forward(m.first->forward(x).tanh()) * 12).sin())
                 .tanh();
           },
       .learning_rate = 1e-4},
      {.name = "a step behind the middle",
       .body =
           [](SmallImpl& m, const Tensor& x) {
             return m.third->forward(m.second->forward(m.first->forward(x)).relu()).relu();
           }},
      {.name = "a softmax with large logits",
       .body =
           [](SmallImpl& m, const Tensor& x) {
             return m.third->forward((m.second->forward(m.first->forward(x)) * 40).softmax(1) * 8);
           },
       .learning_rate = 1e-3},
      {.name = "an exponential",
       .body =
           [](SmallImpl& m, const Tensor& x) {
             return m.third->forward(
                 (m.second->forward(m.first->forward(x)) * 8).clamp_max(6).exp() * 1e-2);
           },
       .learning_rate = 1e-5},
      {.name = "rows of gradients far apart, in a block of tokens",
       .rows =
           [](Tensor& x, Tensor& y) {
             for (int64_t i = 0; i < kRows; i += 16) {
               y[i] *= 1e6;
               x[i] *= 1e-6;
             }
           },
       .learning_rate = 1e-10},
  };
  return all;
}

struct Score {
  int hits = 0, misses = 0, false_alarms = 0;  // layers
  int planted = 0, false_all_clear = 0;        // networks that the recipe harms
  int policies = 0, sound_policies = 0;

  void print(const std::string& title) const {
    std::printf(
        "%s: recall %d of %d, precision %d of %d, harmed networks %d, false all-clear %d, "
        "policies %d, sound %d\n",
        title.c_str(), hits, hits + misses, hits, hits + false_alarms, planted, false_all_clear,
        policies, sound_policies);
  }
};

bool is_verbose() { return std::getenv("DEMI_LONG") != nullptr; }

void print_layers(const RecipeWhatIfResult& result, std::map<std::string, double>& truth) {
  for (const LayerInRecipe& layer : result.layers)
    std::printf(
        "    %-8s truth %.4f said %.4f (max %.4f) policy %.4f products %.4f %.4f %.4f  %s\n",
        layer.layer.c_str(), truth[layer.layer], layer.error, layer.greatest_error,
        layer.policy_error, layer.products[0].error, layer.products[1].error,
        layer.products[2].error, cause_text(layer).c_str());
  for (const auto& name : result.left_out) std::printf("    out: %s\n", name.c_str());
}

void ask_and_score(const Case& one, std::string_view recipe, Score& score) {
  auto truth = truth_of(one, recipe, OpPolicy());
  const RecipeWhatIfResult result = ask(one, recipe);
  bool is_harmed = false;
  for (const LayerInRecipe& layer : result.layers) {
    const bool harmed = truth[layer.layer] > result.threshold;
    is_harmed |= harmed;
    score.hits += harmed && layer.harmed;
    score.misses += harmed && !layer.harmed;
    score.false_alarms += !harmed && layer.harmed;
  }
  score.planted += is_harmed;
  const bool all_clear = result.harmed() == 0;
  score.false_all_clear += is_harmed && all_clear;
  EXPECT_FALSE(is_harmed && all_clear) << recipe << ": " << one.name;
  if (is_verbose()) {
    std::printf("%s | %s | harmed %ld, none fits %d, %.2f s%s\n", std::string(recipe).c_str(),
                one.name, long(result.harmed()), result.none_fits, result.seconds,
                result.diverged ? " DIVERGED" : "");
    print_layers(result, truth);
  }
  if (result.left_out.empty() || result.none_fits) return;
  auto with_policy = truth_of(one, recipe, result.policy);
  bool is_sound = true;
  for (const LayerInRecipe& layer : result.layers)
    is_sound &= with_policy[layer.layer] <= 1.2 * std::max(result.threshold, layer.policy_error);
  ++score.policies;
  score.sound_policies += is_sound;
  if (is_verbose() && !is_sound)
    for (const LayerInRecipe& layer : result.layers)
      std::printf("    with policy %-8s truth %.4f said %.4f\n", layer.layer.c_str(),
                  with_policy[layer.layer], layer.policy_error);
}

TEST(RecipeTable, NamesTheLayersThatARecipeHarmsAndAPolicyThatDoesNot) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);  // of products this small
  Score all;
  for (const auto& recipe : quantization::recipes()) {
    if (!std::getenv("DEMI_LONG") && recipe.name.find(':') != recipe.name.npos) continue;
    Score score;
    for (const Case& one : cases()) ask_and_score(one, recipe.name, score);
    score.print(std::string(recipe.name));
    for (int Score::*part : {&Score::hits, &Score::misses, &Score::false_alarms, &Score::planted,
                             &Score::false_all_clear, &Score::policies, &Score::sound_policies})
      all.*part += score.*part;
  }
  at::set_num_threads(threads);
  all.print("all recipes");
  EXPECT_GE(all.hits, 0.9 * (all.hits + all.misses));
  EXPECT_GE(all.hits, 0.9 * (all.hits + all.false_alarms));
  EXPECT_EQ(all.false_all_clear, 0);
  EXPECT_GE(all.sound_policies, 0.9 * all.policies);
}

}  // namespace
}  // namespace demi::monitor::recipe_table
