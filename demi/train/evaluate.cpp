#include "demi/train/evaluate.h"

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/utils.h>

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "demi/core/flush_subnormals.h"
#include "demi/data/to_device.h"
#include "demi/train/forward.h"
#include "demi/train/ranks.h"

namespace demi::train {
namespace {

// Sums that stay on the device until the end; FP64, since 10,000 losses are added.
struct Sums {
  at::Tensor loss, correct;
  std::vector<at::Tensor> metrics;
  at::Tensor class_correct, class_examples;  // (C)
  int64_t examples = 0;
};

void add_to(at::Tensor& sum, const at::Tensor& more) {
  if (!more.defined()) return;
  sum = sum.defined() ? sum + more : more;
}

void add_batch(Sums& sums, const EvaluateOptions& options, const data::Batch& batch,
               const at::Tensor& output) {
  const int64_t size = batch.target.size(0);
  const at::Tensor loss = options.loss(output, batch.target).to(c10::kDouble) * size;
  const at::Tensor right = options.loss.is_right(output, batch.target);
  add_to(sums.loss, loss);
  if (right.defined()) add_to(sums.correct, right.sum());
  for (std::size_t i = 0; i < options.metrics.size(); ++i)
    add_to(sums.metrics[i], options.metrics[i].sum(output, batch.target).to(c10::kDouble));
  sums.examples += size;
  if (!options.per_class || !right.defined()) return;
  const at::Tensor classes = batch.target.reshape(-1).to(c10::kLong);
  const int64_t count = output.dim() > 1 && output.size(1) > 1 ? output.size(1) : 2;
  add_to(sums.class_examples, classes.bincount({}, count));
  add_to(sums.class_correct, classes.bincount(right.reshape(-1).to(c10::kDouble), count));
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

// Over all ranks. One that had no batch does not know which sums there are, so all ask first.
Sums over_ranks(const Sums& own, distributed::ProcessGroup& group, bool& stopped) {
  const auto classes = [](const at::Tensor& t) { return t.defined() ? t.numel() : int64_t{0}; };
  const at::Tensor there = at::zeros({3}, at::kLong);
  there[0] = own.loss.defined() ? 1 : 0;
  there[1] = own.correct.defined() ? 1 : 0;
  there[2] = classes(own.class_correct);
  group.all_reduce(there, distributed::Reduction::kMax);
  const auto double_of = [](const at::Tensor& t) { return t.defined() ? t.item<double>() : 0.0; };
  std::vector<double> numbers{stopped ? 1.0 : 0.0, static_cast<double>(own.examples),
                              double_of(own.loss), double_of(own.correct)};
  for (const at::Tensor& metric : own.metrics) numbers.push_back(double_of(metric));
  for (const at::Tensor* counts : {&own.class_correct, &own.class_examples})
    for (int64_t i = 0; i < there[2].item<int64_t>(); ++i)
      numbers.push_back(counts->defined() ? (*counts)[i].item<double>() : 0.0);
  numbers = totals(&group, std::move(numbers));
  stopped = numbers[0] > 0;
  Sums all;
  all.examples = static_cast<int64_t>(numbers[1]);
  if (there[0].item<int64_t>() > 0) all.loss = at::scalar_tensor(numbers[2], at::kDouble);
  if (there[1].item<int64_t>() > 0)
    all.correct = at::scalar_tensor(static_cast<int64_t>(numbers[3]), at::kLong);
  auto next = numbers.begin() + 4;
  for (std::size_t i = 0; i < own.metrics.size(); ++i)
    all.metrics.push_back(at::scalar_tensor(*next++, at::kDouble));
  for (at::Tensor* counts : {&all.class_correct, &all.class_examples}) {
    const int64_t count = there[2].item<int64_t>();
    if (count > 0) *counts = at::tensor(std::vector<double>(next, next + count), at::kDouble);
    next += count;
  }
  return all;
}

Evaluation read(const Sums& sums, const EvaluateOptions& options) {
  Evaluation result;
  const double count = static_cast<double>(std::max<int64_t>(sums.examples, 1));
  result.examples = sums.examples;
  if (sums.loss.defined()) result.loss = sums.loss.item<double>() / count;
  if (sums.correct.defined())
    result.accuracy = static_cast<double>(sums.correct.item<int64_t>()) / count;
  for (std::size_t i = 0; i < options.metrics.size() && sums.examples > 0; ++i)
    result.metrics.emplace_back(options.metrics[i].name, sums.metrics[i].item<double>() / count);
  if (sums.class_correct.defined()) {
    const at::Tensor share = (sums.class_correct / sums.class_examples).cpu().contiguous();
    result.class_accuracy.assign(share.data_ptr<double>(),
                                 share.data_ptr<double>() + share.numel());
  }
  return result;
}

}  // namespace

Evaluation evaluate(const Network& network, const data::Loader& loader,
                    const EvaluateOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const torch::NoGradGuard no_grad;
  const EvaluationMode mode(*network.module);
  const BackendsGuard backends(backends_in(options.precision, options.backends));
  const FlushSubnormals flush(options.flush_subnormals && options.device.is_cpu());
  Sums sums;
  sums.metrics.resize(options.metrics.size());
  bool stopped = false;
  for (int64_t position = 0; position < loader.batches(); ++position) {
    stopped = options.should_stop && options.should_stop();
    if (stopped) break;
    const data::Batch batch = data::to_device(loader.batch(0, position), options.device);
    add_batch(sums, options, batch,
              forward_in(options.precision, network, batch, options.device, options.op_policy));
  }
  if (options.group && options.group->world_size() > 1)
    sums = over_ranks(sums, *options.group, stopped);
  Evaluation result = read(sums, options);
  result.stopped = stopped;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace demi::train
