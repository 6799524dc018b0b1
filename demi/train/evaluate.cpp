#include "demi/train/evaluate.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/utils.h>

#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "demi/core/error.h"
#include "demi/core/flush_subnormals.h"
#include "demi/data/to_device.h"
#include "demi/loop/graphed_call.h"
#include "demi/loop/region.h"
#include "demi/train/forward.h"
#include "demi/train/own_loss.h"
#include "demi/train/ranks.h"

namespace demi::train {
namespace {

// Sums that stay on the device until the end; FP64, since 10,000 losses are added.
struct Sums {
  at::Tensor loss, correct;
  at::Tensor answers;                              // that count; undefined: each example does
  std::vector<at::Tensor> metrics, metric_counts;  // one a metric
  at::Tensor class_correct, class_examples;        // (C)
  int64_t examples = 0;
};

void add_to(at::Tensor& sum, const at::Tensor& more) {
  if (!more.defined()) return;
  sum = sum.defined() ? sum + more : more;
}

using Tensors = loop::GraphedCall::Tensors;

// The sums of no batch.
Sums sums_for(const EvaluateOptions& options) {
  Sums sums;
  sums.metrics.resize(options.metrics.size());
  sums.metric_counts.resize(options.metrics.size());
  return sums;
}

template <class Visit>
void each_tensor(Sums& sums, const Visit& visit) {
  for (at::Tensor* one :
       {&sums.loss, &sums.correct, &sums.answers, &sums.class_correct, &sums.class_examples})
    visit(*one);
  for (auto* all : {&sums.metrics, &sums.metric_counts})
    for (at::Tensor& one : *all) visit(one);
}

Tensors tensors_of(Sums sums) {
  Tensors all;
  each_tensor(sums, [&](const at::Tensor& one) { all.push_back(one); });
  return all;
}

void add_batch(Sums& sums, const Tensors& of_batch, int64_t examples) {
  auto next = of_batch.begin();
  each_tensor(sums, [&](at::Tensor& sum) { add_to(sum, *next++); });
  sums.examples += examples;
}

at::Tensor checked(const Metric& metric, const at::Tensor& number) {
  if (!number.defined() || number.numel() != 1)
    throw UsageError({.where = "train.evaluate",
                      .what = "a metric's sum or count is not one number",
                      .seen = metric.name + ": " +
                              (number.defined() ? c10::str(number.sizes()) : "an undefined tensor"),
                      .accepted = "a scalar tensor: the sum over the examples of the batch"});
  return number.to(c10::kDouble).reshape({});
}

void count_classes(Sums& sums, const LossFunction& loss, const at::Tensor& output,
                   const at::Tensor& target, const at::Tensor& right) {
  const auto [classes, count] = loss.classes(output, target);
  const at::Tensor flat = classes.reshape(-1);
  // Ignored answers go into one class more, which is left out.
  const at::Tensor kept = at::where(is_counted(flat), flat, count);
  // bincount would wait for the device. Sums of ones are exact in any order.
  const auto by_class = [&, n = count](const at::Tensor& ones) {
    return at::zeros({n + 1}, ones.options()).scatter_add_(0, kept, ones).narrow(0, 0, n);
  };
  sums.class_examples = by_class(at::ones_like(kept, c10::kDouble));
  sums.class_correct = by_class(right.reshape(-1).to(c10::kDouble));
}

void count_answers(Sums& sums, const data::Batch& batch, const at::Tensor& mean,
                   const at::Tensor& right, const at::Tensor& answers) {
  sums.loss = sum_over(mean.to(c10::kDouble), answers, data::examples_of(batch));
  if (right.defined()) sums.correct = right.sum();
  sums.answers = answers;
}

void count_batch(Sums& sums, const EvaluateOptions& options, const data::Batch& batch,
                 const at::Tensor& computed) {
  const at::Tensor output = at_least_fp32(computed);
  const at::Tensor right = options.loss.is_right(output, batch.target);
  count_answers(sums, batch, options.loss(output, batch.target), right,
                options.loss.answers(output, batch.target));
  for (std::size_t i = 0; i < options.metrics.size(); ++i) {
    const Metric& metric = options.metrics[i];
    sums.metrics[i] = checked(metric, metric.sum(output, batch.target));
    const at::Tensor of = metric.count ? metric.count(output, batch.target)
                                       : at::scalar_tensor(data::examples_of(batch), at::kDouble);
    sums.metric_counts[i] = checked(metric, of);
  }
  if (options.per_class && right.defined())
    count_classes(sums, options.loss, output, batch.target, right);
}

// Each module has its own mode again at the end, also where it is not its parent's: parts that are
// frozen stay frozen.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) : modules_(module.modules()) {
    for (const auto& one : modules_) was_training_.push_back(one->is_training());
    module.eval();
  }
  ~EvaluationMode() {
    // A parent sets its children, and stands before them.
    for (std::size_t i = 0; i < modules_.size(); ++i) modules_[i]->train(was_training_[i]);
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<bool> was_training_;
};

// The sums over all ranks. A rank without a batch does not know which sums there are, so all ask
// first.
Sums over_ranks(const Sums& own, distributed::ProcessGroup& group, bool& stopped) {
  const auto classes = [](const at::Tensor& t) { return t.defined() ? t.numel() : int64_t{0}; };
  const at::Tensor there = at::zeros({3}, at::kLong);
  there[0] = own.loss.defined() ? 1 : 0;
  there[1] = own.answers.defined() ? 1 : 0;  // with them `correct` is, too
  there[2] = classes(own.class_correct);
  group.all_reduce(there, distributed::Reduction::kMax);
  const auto double_of = [](const at::Tensor& t) { return t.defined() ? t.item<double>() : 0.0; };
  std::vector<double> numbers{stopped ? 1.0 : 0.0, static_cast<double>(own.examples),
                              double_of(own.loss), double_of(own.correct), double_of(own.answers)};
  for (const auto* metrics : {&own.metrics, &own.metric_counts})
    for (const at::Tensor& metric : *metrics) numbers.push_back(double_of(metric));
  for (const at::Tensor* counts : {&own.class_correct, &own.class_examples})
    for (int64_t i = 0; i < there[2].item<int64_t>(); ++i)
      numbers.push_back(counts->defined() ? (*counts)[i].item<double>() : 0.0);
  numbers = totals(&group, std::move(numbers));
  stopped = numbers[0] > 0;
  Sums all;
  all.examples = static_cast<int64_t>(numbers[1]);
  if (there[0].item<int64_t>() > 0) all.loss = at::scalar_tensor(numbers[2], at::kDouble);
  if (there[1].item<int64_t>() > 0) {
    all.correct = at::scalar_tensor(static_cast<int64_t>(numbers[3]), at::kLong);
    all.answers = at::scalar_tensor(static_cast<int64_t>(numbers[4]), at::kLong);
  }
  auto next = numbers.begin() + 5;
  for (auto* metrics : {&all.metrics, &all.metric_counts})
    for (std::size_t i = 0; i < own.metrics.size(); ++i)
      metrics->push_back(at::scalar_tensor(*next++, at::kDouble));
  for (at::Tensor* counts : {&all.class_correct, &all.class_examples}) {
    const int64_t count = there[2].item<int64_t>();
    if (count > 0) *counts = at::tensor(std::vector<double>(next, next + count), at::kDouble);
    next += count;
  }
  return all;
}

// NaN of none.
double mean_of(const at::Tensor& sum, double count) {
  return sum.defined() && count > 0 ? sum.item<double>() / count
                                    : std::numeric_limits<double>::quiet_NaN();
}

Evaluation read(const Sums& sums, const EvaluateOptions& options) {
  Evaluation result;
  const double count = sums.answers.defined() ? static_cast<double>(sums.answers.item<int64_t>())
                                              : static_cast<double>(sums.examples);
  result.examples = sums.examples;
  result.loss = mean_of(sums.loss, count);
  if (sums.correct.defined() && count > 0)
    result.accuracy = static_cast<double>(sums.correct.item<int64_t>()) / count;
  for (std::size_t i = 0; i < options.metrics.size(); ++i) {
    const at::Tensor& of = sums.metric_counts[i];
    result.metrics.emplace_back(options.metrics[i].name,
                                mean_of(sums.metrics[i], of.defined() ? of.item<double>() : 0));
  }
  if (sums.class_correct.defined()) {
    const at::Tensor share = (sums.class_correct / sums.class_examples).cpu().contiguous();
    result.class_accuracy.assign(share.data_ptr<double>(),
                                 share.data_ptr<double>() + share.numel());
  }
  return result;
}

void check(const EvaluateOptions& options) {
  for (const Metric& metric : options.metrics)
    if (!metric.sum)
      throw UsageError({.where = "train.evaluate",
                        .what = "a metric has no function",
                        .seen = metric.name,
                        .accepted = "a function that sums it"});
}

}  // namespace

struct Evaluator::Impl {
  Network network;
  const data::Loader& loader;
  EvaluateOptions options;
  bool is_own;  // the network computes the loss
  std::optional<loop::GraphedCall> graphs;

  Impl(Network of, const data::Loader& on, EvaluateOptions with)
      : network(std::move(of)),
        loader(on),
        options(std::move(with)),
        is_own(computes(network, options.loss) && options.metrics.empty() && !options.per_class) {
    check(network, "train.evaluate");
    check(options);
    check_device(options.device);
  }

  bool are_several() const { return options.group && options.group->world_size() > 1; }

  void make_graphs(loop::Step* beside) {
    if (options.graph == loop::GraphMode::off || are_several()) return;
    const loop::CallOptions how{
        .device = options.device, .graph = options.graph, .name = "the evaluation"};
    const auto work = [this](const Tensors& given) { return sums_of(given); };
    if (beside)
      graphs.emplace(loop::GraphedCall({network.module.get()}, work, how, *beside));
    else
      graphs.emplace(loop::GraphedCall({network.module.get()}, work, how));
  }

  // A choice, or the tensors of a batch.
  Tensors sums_of(const Tensors& given) const {
    return sums_of(given.size() == 1 ? loader.chosen(given[0])
                                     : data::Batch{given[0], given[1], given[2]});
  }

  Tensors sums_of(const data::Batch& batch) const {
    Sums sums = sums_for(options);
    if (is_own) {
      const Autocast region = loop::region_of(options.precision, options.device, options.op_policy);
      const OwnLoss own = own_loss(network, options.loss, input_for(options.precision, batch));
      count_answers(sums, batch, own.mean, own.right, options.loss.answers({}, batch.target));
    } else {
      count_batch(sums, options, batch,
                  forward_in(options.precision, network, batch, options.device, options.op_policy));
    }
    return tensors_of(std::move(sums));
  }

  void add(Sums& sums, int64_t position);
};

void Evaluator::Impl::add(Sums& sums, int64_t position) {
  const bool may_replay = graphs && graphs->counts().refusal.empty();
  if (may_replay)
    if (const at::Tensor choice = choice_on(options.device, loader, 0, position); choice.defined())
      return add_batch(sums, (*graphs)({choice}), choice.size(0));
  const data::Batch batch = data::to_device(loader.batch(0, position), options.device);
  const auto is_elsewhere = [](const at::Tensor& one) { return one.defined() && one.is_cpu(); };
  const bool is_split = is_elsewhere(batch.input) || is_elsewhere(batch.lengths);
  if (may_replay && is_split && !options.device.is_cpu()) {
    TORCH_WARN_ONCE("[train.evaluate] batches with a tensor on the CPU, such as lengths, are not ",
                    "recorded in a graph");
  }
  add_batch(sums,
            may_replay && !is_split ? (*graphs)({batch.input, batch.target, batch.lengths})
                                    : sums_of(batch),
            data::examples_of(batch));
}

Evaluator::Evaluator(Network network, const data::Loader& loader, EvaluateOptions options)
    : impl_(std::make_unique<Impl>(std::move(network), loader, std::move(options))) {
  loop::apply_recipe(impl_->options.precision, *impl_->network.module);
  impl_->make_graphs(nullptr);
}

Evaluator::Evaluator(Network network, const data::Loader& loader, EvaluateOptions options,
                     loop::Step& beside)
    : impl_(std::make_unique<Impl>(std::move(network), loader, std::move(options))) {
  loop::apply_recipe(impl_->options.precision, *impl_->network.module);
  impl_->make_graphs(&beside);
}

Evaluator::~Evaluator() = default;
Evaluator::Evaluator(Evaluator&&) noexcept = default;
Evaluator& Evaluator::operator=(Evaluator&&) noexcept = default;

Evaluation Evaluator::evaluate() {
  const auto start = std::chrono::steady_clock::now();
  const EvaluateOptions& options = impl_->options;
  const torch::NoGradGuard no_grad;
  const loop::OutsideRegions outside(options.device);
  const EvaluationMode mode(*impl_->network.module);
  const BackendsGuard backends(loop::backends_in(options.precision, options.backends));
  const FlushSubnormals flush(options.flush_subnormals && options.device.is_cpu());
  Sums sums = sums_for(options);
  bool stopped = false;
  for (int64_t position = 0; position < impl_->loader.batches(); ++position) {
    stopped = options.should_stop && options.should_stop();
    if (stopped) break;
    impl_->add(sums, position);
  }
  if (impl_->are_several()) sums = over_ranks(sums, *options.group, stopped);
  Evaluation result = read(sums, options);
  result.stopped = stopped;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

loop::GraphCounts Evaluator::graph_counts() const {
  return impl_->graphs ? impl_->graphs->counts() : loop::GraphCounts();
}

Evaluation evaluate(const Network& network, const data::Loader& loader,
                    const EvaluateOptions& options) {
  return Evaluator(network, loader, options).evaluate();
}

}  // namespace demi::train
