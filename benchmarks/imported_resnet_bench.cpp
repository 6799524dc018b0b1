// ResNet-50 of `cifar10-resnet50` in C++ and exported from Python, with the same initial weights,
// in FP32 and in contiguous memory (the recipe's own is channels_last, which a graph's views are
// not made for). benchmarks/imported_resnet.py runs both parts:
//
//   imported_resnet_bench weights OUT.safetensors
//   imported_resnet_bench train FILE.pt2 DATA_DIR BATCH ROUNDS
//
// The losses of 20 steps on CIFAR-10 with the recipe's optimizer are compared first, bit for bit.
// Rounds of two steps take turns; shown are median, least and most of a step, the median of the
// processor time of all threads, which other programs change less, and the peak of tensors.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "demi/backends/backends.h"
#include "demi/checkpoint/safetensors.h"
#include "demi/core/instruction_set.h"
#include "demi/imported/imported_model.h"
#include "demi/profile/memory.h"
#include "lab/models/registry.h"
#include "lab/settings/recipe.h"
#include "lab/settings/resolved.h"
#include "lab/workload/workload.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kSteps = 20, kStepsOfRound = 2;

demi::train::Network network_in_cpp(const demi::settings::Config& config) {
  return demi::models::make_model(config.model, {.channels = 3, .size = 32, .classes = 10},
                                  static_cast<std::uint64_t>(config.seed));
}

demi::train::Network network_of(const char* file) {
  demi::ImportedModel model{std::filesystem::path(file)};
  model->fuse(demi::imported::Fusing::always);  // as the layers of the network in C++ are
  demi::train::Network network;
  network.module = model.ptr();
  network.forward = [model](const demi::data::Batch& batch) mutable {
    return model->forward(batch.input.contiguous());
  };
  return network;
}

void save_weights(const char* file) {
  const auto network = network_in_cpp(demi::settings::find_recipe("cifar10-resnet50").config);
  demi::checkpoint::NamedTensors tensors;
  for (const auto& item : network.module->named_parameters())
    tensors[item.key()] = item.value().detach();
  for (const auto& item : network.module->named_buffers()) tensors[item.key()] = item.value();
  demi::checkpoint::save_safetensors(file, tensors);
}

/// One network in training.
struct Run {
  Run(const char* title, demi::train::Network made, const demi::settings::Resolved& run)
      : name(title), network(std::move(made)) {
    optimizer = demi::settings::make_optimizer(run, network);
    network.module->train();
  }

  float step(const demi::data::Batch& batch) {
    optimizer->zero_grad();
    demi::data::Batch contiguous = batch;
    contiguous.input = batch.input.contiguous();
    const at::Tensor loss =
        torch::nn::functional::cross_entropy(network.forward(contiguous), batch.target);
    loss.backward();
    optimizer->step();
    return loss.item<float>();
  }

  void measure(const demi::data::Loader& data, std::int64_t position) {
    const c10::Device cpu(c10::kCPU);
    demi::profile::reset_peak_memory(cpu);
    const auto before = demi::profile::memory_use(cpu).current_bytes;
    const auto start = Clock::now();
    const std::clock_t cpu_start = std::clock();
    for (int i = 0; i < kStepsOfRound; ++i) step(data.batch(0, position + i));
    ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count() /
                 kStepsOfRound);
    cpu_ms.push_back(1e3 * static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC /
                     kStepsOfRound);
    peak_bytes = std::max(peak_bytes, demi::profile::memory_use(cpu).peak_bytes - before);
  }

  const char* name;
  demi::train::Network network;
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  std::vector<double> ms = {}, cpu_ms = {};
  std::int64_t peak_bytes = 0;
};

bool have_equal_losses(Run& a, Run& b, const demi::data::Loader& data) {
  for (int i = 0; i < kSteps; ++i) {
    const float mine = a.step(data.batch(0, i)), theirs = b.step(data.batch(0, i));
    if (mine == theirs) continue;
    std::printf("step %d: %s %.9g, %s %.9g\n", i + 1, a.name, static_cast<double>(mine), b.name,
                static_cast<double>(theirs));
    return false;
  }
  std::printf("the losses of %d steps have the same bits\n", kSteps);
  return true;
}

int train(const char* file, const char* data_dir, int batch, int rounds) {
  demi::keep_memory();
  demi::profile::count_cpu_memory();
  demi::settings::Config config = demi::settings::find_recipe("cifar10-resnet50").config;
  config.data_dir = data_dir;
  config.batch_size = batch;
  config.precision = "fp32";
  const demi::settings::Resolved run = demi::settings::resolve(config);
  const demi::workload::Workload workload = demi::workload::load_workload(config, c10::kCPU);
  Run cpp("C++", network_in_cpp(config), run), imported("imported", network_of(file), run);
  if (!have_equal_losses(imported, cpp, *workload.train)) return 1;
  for (int round = 0; round < rounds; ++round)
    for (Run* one : {&imported, &cpp}) one->measure(*workload.train, kSteps + 2 * round);
  std::printf("%s, %d threads, batch %d, FP32\n%-9s %9s %9s %9s %9s %12s\n",
              demi::processor_name().c_str(), at::get_num_threads(), batch, "a step", "median ms",
              "least", "most", "CPU ms", "peak bytes");
  for (Run* one : {&cpp, &imported}) {
    for (std::vector<double>* times : {&one->ms, &one->cpu_ms})
      std::sort(times->begin(), times->end());
    std::printf("%-9s %9.1f %9.1f %9.1f %9.1f %12lld\n", one->name, one->ms[one->ms.size() / 2],
                one->ms.front(), one->ms.back(), one->cpu_ms[one->cpu_ms.size() / 2],
                static_cast<long long>(one->peak_bytes));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view part = argc > 1 ? argv[1] : "";
  if (part == "weights" && argc == 3) {
    save_weights(argv[2]);
    return 0;
  }
  if (part == "train" && argc == 6 && std::atoi(argv[4]) > 1 && std::atoi(argv[5]) > 0)
    return train(argv[2], argv[3], std::atoi(argv[4]), std::atoi(argv[5]));
  std::printf(
      "imported_resnet_bench weights OUT.safetensors, or train FILE.pt2 DATA_DIR BATCH ROUNDS\n");
  return 2;
}
