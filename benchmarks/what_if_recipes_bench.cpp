// How well monitor::RecipeWhatIf foresees, from one FP32 run, which layers of the recipes' networks
// a recipe harms:
//
//   what_if_recipes_bench DATA_DIR [STEPS [RUN...]]
//
// RUN is NETWORK:RECIPE, such as gpt-shakespeare:mxfp8; all of them by default. STEPS (200) are
// trained in FP32 and asked about, twenty batches. The truth: the network is trained in the recipe
// for as many steps; over the next twenty the gradients of its weights are compared with those in
// FP32 of the same batches from the same weights. A layer is harmed if the mean of the relative
// errors is above the threshold. fashion-cnn is given synthetic pictures,
// mlp has a width of 256 and a batch of 128.
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "demi/monitor/recipe_what_if.h"
#include "demi/quantization/recipe.h"
#include "demi/train/trainer.h"
#include "lab/settings/recipe.h"
#include "lab/settings/resolved.h"
#include "lab/workload/workload.h"

namespace {

using Errors = std::map<std::string, double>;  // by layer
constexpr int64_t kBatches = 20;

struct Truth : demi::loop::StepObserver {
  explicit Truth(int64_t after) : first(after) {}
  int64_t first;
  Errors errors;

  void before_forward(const demi::loop::StepView& view) override { torch::manual_seed(view.step); }
  void after_backward(const demi::loop::StepView& view) override {
    if (view.step <= first) return;
    std::map<std::string, at::Tensor> low;
    for (const auto& item : view.module.named_parameters()) {
      low[item.key()] = item.value().grad();
      item.value().mutable_grad().reset();
    }
    torch::manual_seed(view.step);
    view.repeat({.autocast = false, .scaler = false});
    for (const auto& item : view.module.named_parameters()) {
      const at::Tensor exact = item.value().grad();
      item.value().mutable_grad() = low[item.key()];
      if (!exact.defined() || exact.dim() < 2) continue;
      const std::string& name = item.key();
      errors[name.substr(0, name.rfind('.'))] +=
          ((low[name] - exact).norm() / exact.norm()).item<double>() / kBatches;
    }
  }
};

/// Seconds of the training.
double train(const demi::settings::Config& config, const demi::workload::Workload& workload,
             std::string_view precision, int64_t steps,
             const std::shared_ptr<demi::loop::StepObserver>& observer) {
  const demi::settings::Resolved run =
      demi::settings::resolve(config, demi::settings::parse_run(precision));
  const auto network = workload.make_network(1);
  demi::settings::apply_policy(run, network);
  const auto optimizer = demi::settings::make_optimizer(run, network);
  auto options = demi::settings::trainer_options(run, workload.train->batches());
  options.max_steps = steps;
  demi::Trainer trainer(network, optimizer, options);
  trainer.add(observer);
  const auto start = std::chrono::steady_clock::now();
  trainer.fit(*workload.train);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Score {
  int hits = 0, misses = 0, false_alarms = 0;
};

void measure(const std::string& network, std::string_view recipe, const char* data_dir,
             int64_t steps, Score& score) {
  demi::settings::Config config = demi::settings::find_recipe(network).config;
  config.data_dir = data_dir;
  if (network == "fashion-cnn") {
    config.data = "synthetic-images";
    config.image_size = 28;
    config.batches = 40;
    config.batch_size = 32;
  }
  if (network == "mlp") {
    config.in = config.out = 256;
    config.batches = 40;
    config.batch_size = 128;
  }
  config.epochs = 1000;
  const demi::workload::Workload workload = demi::workload::load_workload(config, c10::kCPU);
  const auto truth = std::make_shared<Truth>(steps);
  train(config, workload, recipe, steps + kBatches, truth);
  const auto what_if = std::make_shared<demi::monitor::RecipeWhatIf>(
      demi::monitor::RecipeWhatIfOptions{.recipe = std::string(recipe), .every = steps / kBatches});
  const double seconds = train(config, workload, "fp32", steps, what_if);
  const auto result = what_if->result();
  std::printf("%s in %s: %.1f s of %.1f s; left out %zu, none fits %d\n", network.c_str(),
              std::string(recipe).c_str(), result.seconds, seconds, result.left_out.size(),
              result.none_fits);
  for (const auto& layer : result.layers) {
    const double error = truth->errors[layer.layer];
    const bool harmed = error > result.threshold;
    score.hits += harmed && layer.harmed;
    score.misses += harmed && !layer.harmed;
    score.false_alarms += !harmed && layer.harmed;
    std::printf("  %-32s truth %.4f said %.4f %s%s\n", layer.layer.c_str(), error, layer.error,
                harmed == layer.harmed ? "" : "WRONG ", cause_text(layer).c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: what_if_recipes_bench DATA_DIR [STEPS [NETWORK:RECIPE...]]\n");
    return 2;
  }
  const int64_t steps = argc > 2 ? std::atoll(argv[2]) : 200;
  std::vector<std::string> runs(argv + std::min(argc, 3), argv + argc);
  if (runs.empty())
    for (const char* network : {"mlp", "gpt-shakespeare", "fashion-cnn"})
      for (const auto& recipe : demi::quantization::recipes())
        if (network != std::string_view("fashion-cnn") || recipe.takes_convolutions)
          runs.push_back(std::string(network) + ":" + std::string(recipe.name));
  Score score;
  for (const std::string& run : runs) {
    const std::size_t colon = run.find(':');
    measure(run.substr(0, colon), run.substr(colon + 1), argv[1], steps, score);
    std::printf("so far: recall %d of %d, precision %d of %d\n", score.hits,
                score.hits + score.misses, score.hits, score.hits + score.false_alarms);
    std::fflush(stdout);
  }
}
