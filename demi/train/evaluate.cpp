#include "demi/train/evaluate.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/utils.h>

#include <chrono>
#include <memory>
#include <vector>

#include "demi/core/flush_subnormals.h"
#include "demi/data/to_device.h"
#include "demi/train/forward.h"

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
  Evaluation result = read(sums, options);
  result.stopped = stopped;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace demi::train
