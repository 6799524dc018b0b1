// The examples of docs/reference, each a function of what it does not make itself: they compile,
// and a page's block is a part of this file.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "demi/core/source_dir_testing.h"
#include "demi/demi.h"
#include "lab/bench/recipe.h"
#include "lab/data/registry.h"
#include "lab/doctor/doctor.h"
#include "lab/models/registry.h"
#include "lab/profiler/profile_run.h"
#include "lab/recipes/run.h"
#include "lab/report/table.h"
#include "lab/settings/recipe.h"
#include "lab/workload/workload.h"
#include "tests/cli_testing.h"

// A page's block ends where its result would be used.
// NOLINTBEGIN(clang-analyzer-deadcode.DeadStores)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wshadow"

namespace reference_pages {

void activation_0(torch::nn::Linear& up, const at::Tensor& x) {
  at::Tensor y = demi::gelu(up->forward(x), "tanh");

  demi::Autocast region(torch::kCPU, torch::kBFloat16);
  at::Tensor z = torch::gelu(up->forward(x), "tanh");
}

void add_norm_0(at::Tensor& x, const at::Tensor& attended, const torch::nn::LayerNorm& norm,
                torch::nn::Sequential& feed_forward) {
  demi::Autocast region(torch::kCPU, torch::kBFloat16);
  auto [sum, normed] = demi::add_layer_norm(x, attended, norm->weight, norm->bias,
                                            {.eps = 1e-5, .dtype = torch::kBFloat16});
  x = sum + feed_forward->forward(normed);
}

void attention_0(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  demi::Autocast region(torch::kCPU, torch::kBFloat16);
  auto y = at::scaled_dot_product_attention(q, k, v, {}, /*dropout_p=*/0.1, /*is_causal=*/true);

  auto starts = torch::tensor({0, 1024, 1500, 2048});
  auto z = demi::attention(q, k, v, {.cu_seqlens = starts, .causal = true});
}

void autocast_0(torch::nn::Sequential& model, const torch::Tensor& input,
                const torch::Tensor& target) {
  demi::Autocast region(torch::kCPU, torch::kBFloat16);
  torch::Tensor output = model->forward(input);
  torch::Tensor loss = torch::nn::functional::cross_entropy(output, target);
}

void batch_norm_0() {
  torch::nn::Sequential features(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 32, 3).padding(1).bias(false)),
      demi::nn::BatchNorm2d(demi::nn::BatchNorm2dOptions(32).relu(true).pool(2)),
      torch::nn::Identity());
}

void batch_norm_1(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  const at::Tensor& running_mean, const at::Tensor& running_var,
                  const at::Tensor& shortcut) {
  at::Tensor y = demi::batch_norm_relu(x, weight, bias, running_mean, running_var,
                                       {.training = true, .add = shortcut});
}

void backends_0(const std::function<void()>& measure) {
  const demi::Backends now = demi::Backends::current();
  demi::Backends{.cudnn_benchmark = true}.set();
  {
    const demi::BackendsGuard fp32({.cuda_matmul_allow_tf32 = false, .cudnn_allow_tf32 = false});
    measure();
  }

  demi::TrainerOptions options;
  options.backends.threads = 4;

  demi::keep_memory();
}

void bench_0() {
  demi::bench::RecipeBenchOptions options;
  options.config = demi::settings::find_recipe("mlp").config;
  const demi::bench::RecipeBenchResult result = demi::bench::bench_recipe(options, torch::kCPU);
  std::printf("%.2f\n", result.runs[1].speedup);
}

void checkpoint_0(torch::nn::Sequential& model, demi::optim::AdamW& optimizer,
                  demi::GradScaler& scaler, int64_t step) {
  demi::loop::Job objects{.models = {model.get()}, .optimizers = {&optimizer}, .scaler = &scaler};
  demi::checkpoint::save("checkpoints", step, objects, {.keep_last = 2});

  demi::checkpoint::load("checkpoints", objects);
  demi::checkpoint::load("checkpoints/best", *model, torch::kCUDA);
}

void core_0(const std::function<void(c10::Device)>& train) {
  try {
    const c10::Device device = demi::pick_device("cuda:1");
    const demi::FlushSubnormals flush(device.is_cpu());
    train(device);
  } catch (const demi::DeviceError& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
}

void data_0() {
  const demi::data::ImageSet train =
      demi::data::load_images("fashion-mnist", demi::data::Split::train);
}

void distributed_0(
    torch::nn::Sequential& model, demi::GradScaler& scaler, double correct, double examples,
    const std::function<std::vector<torch::Tensor>(int, int)>& batches_of,
    const std::function<torch::Tensor(torch::nn::Sequential&, torch::Tensor&)>& loss_of) {
  demi::distributed::ProcessGroup group;
  demi::distributed::DistributedDataParallel parallel(*model, group);
  demi::optim::AdamW optimizer(model->parameters(), 1e-3);
  for (auto& batch : batches_of(group.rank(), group.world_size())) {
    scaler.scale(loss_of(model, batch)).backward();
    scaler.step(optimizer);
    scaler.update();
    optimizer.zero_grad();
  }
  torch::Tensor totals = torch::tensor({correct, examples}, torch::kFloat64);
  group.all_reduce(totals);
}

void distributed_1(torch::nn::Sequential& model, demi::distributed::ProcessGroup& group,
                   const std::filesystem::path& folder, int64_t step,
                   const demi::loop::Job& objects) {
  demi::distributed::DistributedDataParallel parallel(*model, group);
  demi::optim::AdamW optimizer(model->parameters(), 1e-3);
  demi::distributed::ShardedOptimizerState shards(optimizer, group);

  shards.consolidate();
  if (group.rank() == 0) demi::checkpoint::save(folder, step, objects);
  shards.release();
}

void distributed_2(torch::nn::Sequential& model,
                   const std::shared_ptr<torch::optim::Optimizer>& optimizer,
                   const torch::Tensor& inputs, const torch::Tensor& targets,
                   const demi::data::TensorLoader& validation) {
  demi::TrainerOptions options;
  options.group = std::make_shared<demi::distributed::ProcessGroup>();
  options.optimizers = {optimizer};
  demi::Trainer trainer(model, options);
  const demi::data::OrderOptions part{.batch_size = 32,
                                      .shuffle = true,
                                      .rank = options.group->rank(),
                                      .world_size = options.group->world_size()};
  trainer.fit(demi::data::TensorLoader(inputs, targets, part), &validation);
}

void distributed_3(torch::nn::Linear& model, demi::GradScaler& scaler, const torch::Tensor& inputs,
                   const torch::Tensor& targets, torch::Tensor& loss) {
  demi::DataParallel parallel(model);
  demi::optim::AdamW optimizer(model->parameters(), 1e-3);
  {
    demi::Autocast region(torch::kCUDA, torch::kHalf);
    loss = torch::cross_entropy_loss(parallel(inputs), targets);
  }
  scaler.scale(loss).backward();
}

void doctor_0() {
  const demi::doctor::Diagnosis here = demi::doctor::diagnose({.recipe = "mlp"});
  for (const demi::doctor::Advice& one : here.devices[0].advice)
    std::printf("%.2f %s\n", one.gain, one.how.c_str());
}

void imported_0(const at::Tensor& images, const at::Tensor& pair) {
  demi::ImportedModel model("model.pt2");
  demi::optim::SGD optimizer(model->parameters(), 0.1);
  model->train();
  at::Tensor output = model->forward(images);
  c10::IValue all = model->call({images, pair}, {{"scale", 2.0}});
  demi::checkpoint::save_safetensors("trained.safetensors", model->state_dict());
}

void imported_1() { demi::ImportedModel model("model.pt"); }

void kernels_0() {
  for (const demi::kernels::PathStatus& path : demi::kernels::paths())
    std::printf("%s %s %s\n", std::string(path.name).c_str(),
                path.usable ? "usable:" : "declined:", path.reason.c_str());
  demi::kernels::Path path = demi::kernels::path_for(demi::kernels::Device::cpu);
}

void loaders_0(const torch::Tensor& input, const torch::Tensor& target) {
  auto rows = std::make_shared<demi::data::TensorLoader>(
      input, target, demi::data::OrderOptions{.batch_size = 32, .shuffle = true, .seed = 7});
  const demi::data::PrefetchLoader ahead(rows, {.workers = 2, .device = torch::kCPU});
  const demi::data::Batch batch = ahead.batch(/*epoch=*/1, /*position=*/0);
}

void loaders_1(torch::data::datasets::MNIST& digits, demi::Trainer& trainer) {
  auto loader = demi::data::loader_of(digits.map(torch::data::transforms::Stack<>()),
                                      {.batch_size = 32, .shuffle = true, .seed = 7});
  trainer.fit(demi::data::PrefetchLoader(loader, {.workers = 2}));
}

void loop_0(torch::nn::Sequential& model, demi::optim::AdamW& adamw, demi::GradScaler& scaler,
            const demi::monitor::Monitor::Report& print,
            const std::vector<demi::data::Batch>& data) {
  demi::loop::Step step(
      {.models = {model.get()}, .optimizers = {&adamw}, .scaler = &scaler},
      {.precision = demi::parse_precision("fp16"), .accumulate = 4, .clip_norm = 1});
  step.watch(std::make_shared<demi::monitor::Monitor>(100, print));
  for (const auto& batch : data) {
    step.batch([&] { return model->forward(batch.input); },
               [&](const auto& out) { return torch::cross_entropy_loss(out, batch.target); });
    if (step.is_due()) step.finish();
  }
}

void loop_1(torch::nn::Sequential& model, demi::optim::AdamW& adamw, demi::GradScaler& scaler,
            const std::vector<demi::data::Batch>& data) {
  demi::loop::Step step({.models = {model.get()}, .optimizers = {&adamw}, .scaler = &scaler},
                        {.precision = demi::parse_precision("fp16"),
                         .device = torch::kCUDA,
                         .graph = demi::loop::GraphMode::automatic});
  for (const auto& batch : data) {
    step.batch(
        {batch.input}, {batch.target}, [&](const auto& in) { return model->forward(in[0]); },
        [&](const auto& out, const auto& to) { return torch::cross_entropy_loss(out, to[0]); });
    step.finish();
  }
}

void loop_2(torch::nn::Sequential& policy, demi::loop::Step& step,
            const torch::Tensor& observations) {
  demi::loop::GraphedCall act(
      {policy.get()},
      [&](const auto& in) {
        const demi::Autocast region(torch::kCUDA);
        return std::vector{policy->forward(in[0])};
      },
      {.device = torch::kCUDA}, step);
  const torch::Tensor logits = act({observations}).front();
}

void models_0(const torch::Tensor& images) {
  demi::train::Network model =
      demi::models::make_model("resnet50", {.channels = 3, .size = 32, .classes = 10}, /*seed=*/0);
  torch::Tensor logits = model.forward({.input = images});
}

void models_1() {
  demi::train::Network gpt = demi::models::make_model(
      "gpt", {.vocabulary = 65, .context = 64, .settings = {{"depth", "4"}, {"block", "llama"}}},
      /*seed=*/0);
}

void monitor_0(torch::nn::Sequential& model, const demi::TrainerOptions& options,
               demi::optim::AdamW& optimizer, demi::GradScaler& scaler,
               const demi::data::Loader& loader) {
  demi::Trainer trainer(model, options);
  trainer.add(
      std::make_shared<demi::monitor::Monitor>(100, [](const demi::monitor::StepHealth& step) {
        const auto shares =
            demi::monitor::flushed_shares(step.weight_gradients(), step.loss_scale.value_or(1));
        std::printf("step %ld: %.2f %% of the gradients would be flushed to zero without scaling\n",
                    long(step.step), 100 * shares.flushed_unscaled);
      }));
  trainer.fit(loader);

  std::cout << demi::status(*model, optimizer, scaler);
  for (const auto& found : demi::monitor::find_nonfinite(*model, optimizer))
    std::cout << to_string(found) << "\n";
}

void monitor_1(torch::nn::Sequential& model, demi::Trainer& trainer, demi::TrainerOptions& options,
               const demi::data::Loader& loader) {
  const auto what_if = std::make_shared<demi::monitor::WhatIf>();
  trainer.add(what_if);
  trainer.fit(loader);
  std::ofstream("op_policy.txt") << what_if->result().policy_text();

  const auto policy = demi::OpPolicy::from_file("op_policy.txt");
  demi::apply(policy, *model);
  options.op_policy = policy;
}

void monitor_2(torch::nn::Sequential& model, demi::Trainer& trainer,
               const demi::data::Loader& loader) {
  const auto what_if = std::make_shared<demi::monitor::RecipeWhatIf>(
      demi::monitor::RecipeWhatIfOptions{.recipe = "mxfp8", .every = 50});
  trainer.add(what_if);
  trainer.fit(loader);
  const demi::monitor::RecipeWhatIfResult result = what_if->result();
  for (const auto& layer : result.layers)
    if (layer.harmed) std::cout << layer.layer << ": " << cause_text(layer) << "\n";
  if (!result.none_fits) demi::apply(result.policy, *model);
}

void nn_0(torch::nn::Sequential& body, torch::nn::Linear& head, demi::GradScaler& scaler,
          const torch::Tensor& tokens, const torch::Tensor& targets) {
  at::Tensor loss;
  {
    demi::Autocast region(torch::kCPU, torch::kBFloat16);
    const auto hidden = body->forward(tokens);
    loss = demi::linear_cross_entropy(hidden, head->weight, targets);
  }
  scaler.scale(loss).backward();
}

void nn_1(torch::Tensor& x, const torch::Tensor& starts, int64_t N, int64_t T) {
  demi::nn::TransformerBlock block(
      demi::nn::TransformerBlockOptions{.width = 384,
                                        .heads = 6,
                                        .key_heads = 2,
                                        .norm = demi::nn::NormKind::rms_norm,
                                        .bias = false,
                                        .activation = demi::nn::Activation::swiglu,
                                        .qk_norm = true});
  demi::nn::TokenContext context{
      .cu_seqlens = starts,
      .rotary = demi::nn::rotary_angles(demi::nn::document_positions(starts, N, T), 384 / 6)};
  x = block->forward(x, context);
}

void optim_0(torch::nn::Sequential& model, torch::Tensor& loss) {
  demi::optim::AdamW optimizer(model->parameters(),
                               demi::optim::AdamWOptions(1e-3).weight_decay(0.05));
  loss.backward();
  torch::Tensor norm = demi::optim::clip_grad_norm_(model->parameters(), 1.0);
  optimizer.step();
  if (optimizer.last_step().skipped()) std::puts("a gradient was Inf or NaN");
}

void optim_1(torch::nn::Sequential& model, const demi::optim::AdamWOptions& options) {
  demi::optim::AdamW adamw(model->parameters(), options,
                           {.skip_norm_above = demi::optim::NormLimit{.deviations = 6}});
}

void optim_2(torch::nn::Linear& body, torch::nn::Linear& head) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(body->parameters(), std::make_unique<demi::optim::AdamWOptions>(1e-3));
  groups.emplace_back(head->parameters(), std::make_unique<demi::optim::SGDOptions>(0.1));
  demi::optim::MultiOptimizer optimizer(groups);
}

void optim_3(torch::nn::Sequential& model) {
  demi::optim::MultiOptimizer optimizer(demi::optim::muon_groups(
      *model, demi::optim::MuonOptions(0.02), demi::optim::AdamWOptions(3e-4)));
}

struct Points : torch::nn::Module {
  torch::Tensor means = register_parameter("means", torch::rand({100, 3}));

  // rows: int64, the old row of each new one, or -1 for a new row
  void replace(demi::optim::Optimizer& optimizer, const torch::Tensor& values,
               const torch::Tensor& rows) {
    const torch::Tensor old = means;
    means = parameters_["means"] = values.detach().requires_grad_();  // registered, and assigned
    demi::optim::replace_parameter(optimizer, old, means, rows);
  }
};

void products_0(const torch::Tensor& x, const torch::Tensor& weight) {
  demi::Autocast region(torch::kCPU, torch::kBFloat16);
  torch::Tensor y = torch::linear(x, weight);
}

void profile_0(c10::Device device, const std::function<void()>& train) {
  demi::profile::count_cpu_memory();
  demi::profile::Measured measured;
  {
    const demi::profile::ScopedTimer timer(device, measured);
    train();
  }
  std::printf("%.2f s, %.1f MB\n", measured.seconds,
              1e-6 * static_cast<double>(measured.peak_bytes));
}

void profiler_0() {
  const demi::settings::Config config = demi::settings::find_recipe("mlp").config;
  const demi::workload::Workload workload = demi::workload::load_workload(config, torch::kCPU);
  const demi::profiler::RunProfile run = demi::profiler::profile_run(
      {.config = config, .steps = 3}, demi::settings::parse_run("bf16"), workload);
  for (const demi::profiler::OpUse& op : run.summary.ops)
    std::printf("%s %s %.3f ms\n", op.name.c_str(), op.dtype.c_str(), op.ms);
}

void quantization_0(const torch::Tensor& x, const torch::Tensor& gradient, const torch::Tensor& w) {
  namespace quantization = demi::quantization;
  quantization::Quantized mxfp8 = quantization::quantize(x);
  torch::Tensor seen = quantization::dequantize(mxfp8);

  quantization::Options options{.format = quantization::NarrowFormat::e2m1,
                                .scaling = quantization::Scaling::nv};
  options.down = true;
  options.by_chance = {.seed = 1, .tensor = 4, .product = 2, .step = 100};
  quantization::Quantized nvfp4 = quantization::quantize(gradient, options);
  torch::Tensor spread = quantization::hadamard(gradient, true);
  quantization::Quantized weight = quantization::quantize(
      w, {.format = quantization::NarrowFormat::e2m1, .scaling = quantization::Scaling::nv_square});
}

void quantization_1(torch::nn::Sequential& model, const torch::Tensor& x, std::int64_t steps) {
  demi::OpPolicy policy = demi::OpPolicy::of_recipe("mxfp8", *model);
  policy.set_part("layers.11", "lower_precision");
  policy.set_part("layers.3", "nvfp4", 8200);
  demi::apply(policy, *model);
  for (std::int64_t step = 0; step < steps; ++step) {
    demi::set_step(*model, step);
    demi::Autocast region(torch::kCPU, torch::kBFloat16);
    torch::Tensor y = model->forward(x);
  }
}

void recompute_0(
    std::vector<torch::nn::Linear>& blocks, at::Tensor& x, const at::Tensor& mask,
    const std::function<std::vector<at::Tensor>(const at::Tensor&, const at::Tensor&)>& two_heads) {
  for (auto& block : blocks)
    x = demi::recompute([&block](const at::Tensor& x) { return block->forward(x); }, x);

  auto outputs = demi::recompute(
      [&](const std::vector<at::Tensor>& in) { return two_heads(in[0], in[1]); }, {x, mask});
}

void report_0() {
  demi::report::Table table{
      .title = "fashion-cnn",
      .columns = {{"precision", "", demi::report::Align::kLeft}, {"time", "s"}},
      .rows = {{"fp32", "48.3"}, {"bf16", "50.8"}}};
  std::cout << demi::report::to_text(table, demi::report::Terminal::of(STDOUT_FILENO));
}

void rnn_0(const torch::Tensor& input) {
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(128, 256).num_layers(2).batch_first(true));
  demi::Autocast region(torch::kCPU, torch::kBFloat16);
  auto [output, state] = lstm->forward(input);
}

void safetensors_0(const torch::Tensor& tensor, torch::nn::Sequential& model) {
  demi::checkpoint::save_safetensors("tensor.safetensors", {{"weight", tensor}},
                                     {{"format", "pt"}});
  demi::checkpoint::save_safetensors("model.safetensors", demi::checkpoint::named_tensors(*model));
  demi::checkpoint::load("model.safetensors", *model);
  demi::checkpoint::Safetensors file = demi::checkpoint::load_safetensors("model.safetensors");
  demi::checkpoint::SafetensorsHeader header =
      demi::checkpoint::read_safetensors_header("model.safetensors");
}

void scaler_0(torch::nn::Sequential& model, demi::optim::AdamW& optimizer, torch::Tensor& loss) {
  demi::GradScaler scaler;
  scaler.scale(loss).backward();
  scaler.unscale_(optimizer);
  demi::optim::clip_grad_norm_(model->parameters(), 1.0);
  demi::StepResult result = scaler.step(optimizer);
  scaler.update();
}

void schedule_0(demi::optim::AdamW& optimizer, demi::GradScaler& scaler) {
  namespace lr = demi::optim::lr;
  auto warm_up_then_cosine = lr::sequential({lr::linear(0.1, 1.0, 500), lr::cosine(9500)}, {500});
  lr::Scheduler schedule(optimizer, warm_up_then_cosine);
  for (int step = 0; step < 10000; ++step) {
    const demi::StepResult result = scaler.step(optimizer);
    scaler.update();
    schedule.step(result);
  }
}

void train_0() {
  demi::settings::Config config = demi::settings::find_recipe("fashion-cnn").config;
  demi::settings::set(config, "epochs", "1", "main");
  const c10::Device device = demi::pick_device("auto");
  const demi::workload::Workload workload = demi::workload::load_workload(config, device);
  const demi::recipes::RunResult result = demi::recipes::run(
      demi::settings::resolve(config, demi::settings::parse_run("bf16"), device), workload, {});
}

void trainer_0(const torch::Tensor& x_train, const torch::Tensor& y_train,
               const torch::Tensor& x_val, const torch::Tensor& y_val) {
  torch::nn::Sequential model(torch::nn::Linear(32, 64), torch::nn::ReLU(),
                              torch::nn::Linear(64, 10));
  demi::TrainerOptions options;
  options.precision = demi::parse_precision("bf16");
  options.metrics = {demi::train::top_k(2)};
  const demi::train::History history =
      demi::Trainer(model, options)
          .fit(x_train, y_train, {.epochs = 5, .validation = {x_val, y_val}});
}

void trainer_1(torch::nn::Sequential& model, demi::TrainerOptions& options,
               const demi::data::Loader& loader, const demi::data::TensorLoader& validation) {
  options.checkpoints = {.folder = "checkpoints", .every = demi::train::Every::parse("10min")};
  demi::Trainer trainer(model, options);
  if (std::filesystem::exists("checkpoints/last")) trainer.resume("checkpoints");
  trainer.fit(loader, &validation);
}

void weights_0(const torch::Tensor& input) {
  torch::Tensor table = torch::randn({50000, 300});
  demi::weights::own(table);
  {
    demi::Autocast region(torch::kCPU, torch::kBFloat16);
    torch::Tensor scores = torch::linear(input, table);
  }
  demi::weights::disown(table);
}

}  // namespace reference_pages

#pragma GCC diagnostic pop
// NOLINTEND(clang-analyzer-deadcode.DeadStores)

namespace cli_testing {
namespace {

// Without comments, blanks and line ends.
std::string code_alone(const std::string& text) {
  return std::regex_replace(text, std::regex("//[^\n]*|\\s"), "");
}

TEST(ReferencePages, EachExampleIsOneThatCompiles) {
  const std::string compiled =
      code_alone(slurp(demi::source_dir() / "tests/cli_reference_pages_test.cpp"));
  int blocks = 0;
  for (const auto& page :
       std::filesystem::directory_iterator(demi::source_dir() / "docs/reference")) {
    const std::string text = slurp(page.path()), begin = "```cpp\n";
    for (std::size_t at = 0; (at = text.find(begin, at)) != std::string::npos; ++blocks) {
      at += begin.size();
      const std::string block = text.substr(at, text.find("```\n", at) - at);
      EXPECT_NE(compiled.find(code_alone(block)), std::string::npos) << page.path() << "\n"
                                                                     << block;
    }
  }
  EXPECT_GE(blocks, 35);
}

}  // namespace
}  // namespace cli_testing
