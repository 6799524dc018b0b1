#include <ATen/ops/zeros.h>
#include <torch/utils.h>

#include <chrono>

#include "demi/train/forward.h"
#include "demi/train/trainer.h"

namespace demi::train {

Evaluation evaluate(const Network& network, const data::Loader& loader, const Precision& precision,
                    c10::Device device, Loss loss) {
  const auto start = std::chrono::steady_clock::now();
  const torch::NoGradGuard no_grad;
  const bool was_training = network.module->is_training();
  network.module->eval();
  const Tf32Mode tf32(precision.tf32);

  // Sums stay on the device until the end; FP64, since 10,000 losses are added.
  at::Tensor loss_sum = at::zeros({}, at::TensorOptions(device).dtype(c10::kDouble));
  at::Tensor correct;
  int64_t examples = 0;
  for (int64_t position = 0; position < loader.batches(); ++position) {
    const data::Batch batch = loader.batch(0, position);
    const int64_t size = batch.target.size(0);
    const at::Tensor output = forward_in(precision, network, batch, device);
    loss_sum += loss_of(loss, output, batch.target).to(c10::kDouble) * size;
    const at::Tensor right = correct_count(loss, output, batch.target);
    if (right.defined()) correct = correct.defined() ? correct + right : right;
    examples += size;
  }
  Evaluation result;
  const double count = static_cast<double>(std::max<int64_t>(examples, 1));
  result.loss = loss_sum.item<double>() / count;
  if (correct.defined()) result.accuracy = static_cast<double>(correct.item<int64_t>()) / count;
  network.module->train(was_training);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace demi::train
