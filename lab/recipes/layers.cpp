#include "lab/recipes/layers.h"

#include <ATen/record_function.h>
#include <torch/nn/modules/dropout.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "demi/autocast/autocast.h"
#include "demi/core/error.h"
#include "demi/data/to_device.h"
#include "demi/monitor/layers.h"
#include "demi/nn/feed_forward.h"
#include "demi/nn/self_attention.h"
#include "demi/train/own_loss.h"
#include "demi/train/trainer.h"
#include "lab/models/gpt.h"
#include "lab/models/seeded.h"
#include "lab/recipes/starting_weights.h"

namespace demi::recipes {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

at::Tensor flat(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU, at::kDouble).contiguous().reshape(-1);
}

double norm_of(const at::Tensor& values) { return values.square().sum().sqrt().item<double>(); }

double cosine_of(const at::Tensor& a, const at::Tensor& b) {
  const double norms = norm_of(a) * norm_of(b);
  if (norms > 0) return std::clamp((a * b).sum().item<double>() / norms, -1.0, 1.0);
  return norm_of(a) == norm_of(b) ? 1 : 0;
}

}  // namespace

Difference difference(const at::Tensor& exact, const at::Tensor& low) {
  at::Tensor a = flat(exact), b = flat(low);
  const at::Tensor sound = a.isfinite();
  a = a.masked_select(sound);
  b = b.masked_select(sound);
  Difference result;
  const at::Tensor magnitudes = a.abs(), above = magnitudes.masked_select(magnitudes.gt(0));
  if (above.numel() > 0) {
    result.least = above.min().item<double>();
    result.greatest = above.max().item<double>();
    result.flushed = b.masked_select(magnitudes.gt(0)).eq(0).sum().item<double>() /
                     static_cast<double>(above.numel());
  }
  const at::Tensor finite = b.isfinite();
  result.nonfinite = finite.logical_not().sum().item<int64_t>();
  const at::Tensor both = a.masked_select(finite), low_both = b.masked_select(finite);
  result.cosine = cosine_of(both, low_both);
  const double distance = norm_of(low_both - both), length = norm_of(both);
  if (result.nonfinite > 0 || (length == 0 && distance > 0))
    result.error = kUnbounded;
  else if (length > 0)
    result.error = distance / length;
  return result;
}

namespace {

// Watches one forward pass of this thread. A layer's output is that of an op that reads its weights
// and something else; if the bias is added in place behind a product, that of the addition. Its
// gradient comes later, in backward.
class Watch {
 public:
  Watch(const torch::nn::Module& module, std::vector<LayerTrace>& layers)
      : owners_(module), layers_(layers) {
    current = this;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&enter, &leave)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  }
  ~Watch() {
    at::removeCallback(handle_);
    current = nullptr;
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  static std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& op) {
    if (current) current->begin(op);
    return nullptr;
  }
  static void leave(const at::RecordFunction& op, at::ObserverContext*) {
    if (current) current->end(op);
  }

  // Begins an op. Only the outermost of nested ops counts.
  void begin(const at::RecordFunction& op) {
    if (depth_++ > 0) return;
    open_ = -1;
    bool reads_more = false;
    monitor::for_each_tensor(op.inputs(), [&](const at::Tensor& tensor) {
      const int owner = owners_.find(tensor);
      owner >= 0 ? void(open_ = owner) : void(reads_more = true);
    });
    if (!reads_more) open_ = -1;  // a view or a cast of the weights
  }

  void end(const at::RecordFunction& op) {
    if (--depth_ > 0 || open_ < 0) return;
    at::Tensor output;  // the first one; an LSTM's others are its state
    monitor::for_each_tensor(op.outputs(), [&](const at::Tensor& tensor) {
      if (!output.defined()) output = tensor;
    });
    if (!output.defined() || !output.is_floating_point() || owners_.find(output) >= 0) return;
    take(owners_.all()[static_cast<std::size_t>(open_)].name, std::string(op.name()), output);
  }

  void take(const std::string& layer, std::string op, const at::Tensor& output) {
    const bool is_same_use = layer == last_ && last_output_.is_alias_of(output);
    if (!is_same_use) {
      const int64_t use = ++uses_[layer];
      layers_.push_back({.name = use == 1 ? layer : layer + " (" + std::to_string(use) + ")"});
    }
    last_ = layer;
    last_output_ = output.detach();
    LayerTrace& trace = layers_.back();
    if (op.starts_with("aten::")) op.erase(0, 6);
    trace.op = std::move(op);
    const at::NoGradGuard no_grad;
    trace.output = output.detach().to(c10::kFloat, /*non_blocking=*/false, /*copy=*/true);
    if (!output.requires_grad()) return;
    output.register_hook([all = &layers_, at = layers_.size() - 1](const at::Tensor& gradient) {
      LayerTrace& own = (*all)[at];
      // The latter: that of the product in front of the bias.
      if (!gradient.defined() || own.gradient.defined()) return;
      own.gradient = gradient.detach().to(c10::kFloat, /*non_blocking=*/false, /*copy=*/true);
    });
  }

  static thread_local Watch* current;
  monitor::Layers owners_;
  std::vector<LayerTrace>& layers_;
  at::CallbackHandle handle_ = 0;
  int depth_ = 0;
  int open_ = -1;     // the layer whose weights the outermost open op reads
  std::string last_;  // whose output last_output_ is
  at::Tensor last_output_;
  std::map<std::string, int64_t> uses_;
};

thread_local Watch* Watch::current = nullptr;

template <class... Modules>
bool is_one_of(torch::nn::Module& module) {
  return (module.as<Modules>() || ...);
}

// Two precisions draw other numbers for it. GPTs and the parts of blocks use their mode for nothing
// else.
void turn_off_dropout(torch::nn::Module& module) {
  for (const auto& each : module.modules())
    if (is_one_of<torch::nn::Dropout, torch::nn::Dropout2d, torch::nn::Dropout3d,
                  torch::nn::AlphaDropout, torch::nn::FeatureAlphaDropout, nn::SelfAttention,
                  nn::FeedForward, models::GPT>(*each))
      each->eval();
}

// The network's output, or its own loss.
at::Tensor output_of(const settings::Resolved& run, const train::Network& network,
                     data::Batch batch) {
  const Precision& precision = run.spec.precision;
  const bool mixed = precision.is_mixed() && run.config.autocast;
  const Autocast region(
      run.device.type(),
      AutocastOptions{.dtype = precision.autocast, .enabled = mixed, .policy = run.op_policy});
  if (!precision.is_mixed() && batch.input.is_floating_point())
    batch.input = batch.input.to(precision.weights);
  if (train::computes(network, run.loss))
    return train::own_loss(network, run.loss, batch, run.config.label_smoothing).mean;
  return network.forward(batch);
}

void take_weight_gradients(NetworkTrace& trace, const torch::nn::Module& module, double scale) {
  std::map<std::string, std::vector<at::Tensor>> of_layer;
  const monitor::Layers layers(module);
  for (const monitor::Layer& layer : layers.all())
    for (const at::Tensor& parameter : layer.parameters) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      const at::Tensor unscaled = gradient.detach().to(c10::kFloat) / scale;
      trace.finite_gradients &= unscaled.isfinite().all().item<bool>();
      of_layer[layer.name].push_back(unscaled);
    }
  for (LayerTrace& layer : trace.layers) {
    const auto found = of_layer.find(layer.name);  // a later use has another name
    if (found != of_layer.end()) layer.weight_gradients = found->second;
    if (layer.gradient.defined()) layer.gradient = layer.gradient / scale;
  }
}

}  // namespace

NetworkTrace trace_layers(const settings::Resolved& run, const train::Network& network,
                          const data::Batch& batch, double loss_scale) {
  NetworkTrace trace;
  torch::nn::Module& module = *network.module;
  module.train();
  turn_off_dropout(module);
  module.zero_grad();
  at::Tensor output;
  {
    const models::Seeded same_numbers(0);  // of dropout that is no module: a network's from Python
    const Watch watch(module, trace.layers);
    output = output_of(run, network, batch);
  }
  const at::Tensor loss = train::computes(network, run.loss)
                              ? output
                              : run.loss(output, batch.target, run.config.label_smoothing);
  trace.loss = loss.item<double>();
  (loss * loss_scale).backward();
  take_weight_gradients(trace, module, loss_scale);
  module.zero_grad();
  return trace;
}

double LayerDifference::harm() const {
  return std::max({output.error, gradient.error, weight_gradient.error});
}

namespace {

at::Tensor flat_together(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& tensor : tensors) all.push_back(flat(tensor));
  return at::cat(all);
}

LayerDifference compare_layer(const LayerTrace& exact, const LayerTrace& low) {
  LayerDifference result{.name = exact.name, .op = exact.op};
  result.output = difference(exact.output, low.output);
  if (exact.gradient.defined() && low.gradient.defined())
    result.gradient = difference(exact.gradient, low.gradient);
  if (!exact.weight_gradients.empty() &&
      exact.weight_gradients.size() == low.weight_gradients.size())
    result.weight_gradient =
        difference(flat_together(exact.weight_gradients), flat_together(low.weight_gradients));
  return result;
}

// The worst first. An Inf travels: the layer where it appears comes before those that it reaches,
// which is the first one in forward, and the last one if it appears in backward.
std::vector<LayerDifference> by_harm(std::vector<LayerDifference> layers) {
  const auto overflows = [](const LayerDifference& layer) {
    return std::isinf(layer.output.error);
  };
  if (std::ranges::none_of(layers, overflows)) std::ranges::reverse(layers);
  std::ranges::stable_sort(layers, [&](const LayerDifference& a, const LayerDifference& b) {
    return overflows(a) != overflows(b) ? overflows(a) : a.harm() > b.harm();
  });
  return layers;
}

std::vector<LayerDifference> differences(const NetworkTrace& exact, const NetworkTrace& low) {
  std::vector<LayerDifference> result;
  for (const LayerTrace& layer : exact.layers) {
    const auto same = std::ranges::find(low.layers, layer.name, &LayerTrace::name);
    if (same != low.layers.end()) result.push_back(compare_layer(layer, *same));
  }
  return by_harm(std::move(result));
}

void copy_weights(const torch::nn::Module& from, const torch::nn::Module& to) {
  const at::NoGradGuard no_grad;
  const auto parameters = from.named_parameters(), buffers = from.named_buffers();
  for (auto& item : to.named_parameters()) item.value().copy_(parameters[item.key()]);
  for (auto& item : to.named_buffers()) item.value().copy_(buffers[item.key()]);
}

bool is_dynamic(const settings::Resolved& run) {
  const LossScale::Kind kind = run.spec.loss_scale.kind;
  const bool automatic = kind == LossScale::Kind::automatic;
  return run.config.scaler &&
         ((automatic && run.spec.precision.autocast == c10::kHalf) ||
          kind == LossScale::Kind::dynamic || kind == LossScale::Kind::statistics);
}

double first_scale(const settings::Resolved& run) {
  const LossScale scale = run.spec.loss_scale;
  if (run.config.scaler && scale.kind == LossScale::Kind::fixed) return scale.value;
  return is_dynamic(run) ? run.config.init_scale : 1;
}

int64_t steps_of_epoch(const settings::Config& config, const data::Loader& loader) {
  return std::max<int64_t>(train::steps_of(loader.batches(), settings::batches_of_step(config)), 1);
}

// Trained for so many steps.
train::Network trained_network(const settings::Resolved& run, int64_t steps,
                               const workload::Workload& workload) {
  const settings::Config& config = run.config;
  train::Network network = workload.make_network(static_cast<uint64_t>(config.seed));
  const auto optimizer = settings::make_optimizer(run, network);
  if (!config.from.empty())
    put(read_start(run, workload, *network.module, config.from), *network.module, *optimizer);
  if (steps == 0) return network;
  const int64_t per_epoch = steps_of_epoch(config, *workload.train);
  const int64_t whole = settings::scheduled_epochs(config) * per_epoch;
  if (run.schedule->ends && steps > whole)
    throw UsageError({.where = "--layers",
                      .what = "the learning rates of the " + config.schedule +
                              " schedule end before so many steps",
                      .seen = std::to_string(steps),
                      .accepted = "0 to " + std::to_string(whole),
                      .advice = "more --epochs, or --schedule constant"});
  train::TrainerOptions options = settings::trainer_options(run, workload.train->batches());
  options.max_steps = steps;
  options.epochs = steps / per_epoch + 1;
  train::Trainer(network, optimizer, std::move(options)).fit(*workload.train);
  return network;
}

// The first batch of the step behind so many.
data::Batch batch_after(int64_t steps, const settings::Config& config, const data::Loader& loader,
                        c10::Device device) {
  const int64_t per_epoch = steps_of_epoch(config, loader);
  const int64_t batch = steps % per_epoch * settings::batches_of_step(config);
  return data::to_device(loader.batch(steps / per_epoch, batch), device);
}

}  // namespace

std::vector<LayerComparison> compare_layers(const LayerOptions& options,
                                            const workload::Workload& workload) {
  const auto seed = static_cast<uint64_t>(options.config.seed);
  torch::manual_seed(seed);
  const settings::Resolved in_fp32 =
      settings::resolve(options.config, settings::run_in(parse_precision("fp32")), options.device);
  const train::Network exact = trained_network(in_fp32, options.steps, workload);
  const data::Batch batch =
      batch_after(options.steps, options.config, *workload.train, options.device);
  train::Network spare = workload.make_network(seed);
  copy_weights(*exact.module, *spare.module);
  const NetworkTrace reference = trace_layers(in_fp32, spare, batch, 1);
  std::vector<LayerComparison> result;
  for (const settings::Resolved& run : options.runs) {
    if (run.spec.label == "fp32") continue;
    const Precision& precision = run.spec.precision;
    LayerComparison one{.spec = run.spec, .loss_scale = first_scale(run)};
    NetworkTrace low;
    while (true) {
      train::Network network = workload.make_network(seed);
      copy_weights(*exact.module, *network.module);
      if (!precision.is_mixed()) network.module->to(precision.weights);
      settings::apply_policy(run, network);
      low = trace_layers(run, network, batch, one.loss_scale);
      if (low.finite_gradients || !is_dynamic(run) || one.loss_scale <= 1) break;
      one.loss_scale = std::max(1.0, one.loss_scale * run.config.backoff_factor);
    }
    one.loss = low.loss;
    one.exact_loss = reference.loss;
    one.layers = differences(reference, low);
    result.push_back(std::move(one));
  }
  if (result.empty())
    throw UsageError({.where = "recipes.compare_layers",
                      .what = "there is no run to compare with fp32",
                      .accepted = "such as bf16 or fp16"});
  return result;
}

}  // namespace demi::recipes
