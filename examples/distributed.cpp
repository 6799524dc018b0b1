// A loop of one's own on several processes: each rank trains on its share of every batch, and all
// have the same weights at all times. The same program runs on one rank.
//
//     torchrun --no-python --nproc-per-node 4 ./distributed
//     mpirun -n 4 -x MASTER_ADDR=127.0.0.1 -x MASTER_PORT=29500 ./distributed
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

constexpr int64_t kRows = 96, kSteps = 60, kMicroBatches = 2;

// The error of the weights that training should find.
double train(demi::distributed::ProcessGroup& group, torch::Device device, torch::Dtype dtype) {
  torch::manual_seed(0);  // the same weights on all ranks; if not, rank 0's, with a warning
  torch::nn::Linear model(8, 1);
  model->to(device);
  demi::distributed::DistributedDataParallel parallel(*model, group);
  demi::optim::SGD optimizer(model->parameters(), demi::optim::SGDOptions(0.1));
  demi::GradScaler scaler(demi::GradScalerOptions{.init_scale = 1024});

  // The data are the same on all ranks. Each takes the rows from its rank on, in steps of the world
  // size.
  torch::manual_seed(7);
  const auto all = torch::randn({kRows, 8}).to(device);
  const auto x = all.slice(0, group.rank(), kRows, group.world_size()), y = x.sum(1, true);
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto inputs = x.chunk(kMicroBatches), targets = y.chunk(kMicroBatches);
    const auto backward = [&](size_t i) {
      torch::Tensor loss;
      {
        const demi::Autocast region(device.type(), dtype);
        loss = torch::mse_loss(model->forward(inputs[i]), targets[i]) / double{kMicroBatches};
      }
      scaler.scale(loss).backward();
    };
    {
      const auto no_sync = parallel.no_sync();  // adds to .grad, sends nothing
      backward(0);
    }
    backward(1);             // averages the sum over all ranks
    scaler.step(optimizer);  // skips on all ranks or on none
    scaler.update();
    optimizer.zero_grad();
  }

  // An exact total over all ranks, for evaluation.
  const auto errors = (model->forward(x) - y).square().sum().to(torch::kFloat64).cpu();
  const auto totals = torch::stack({errors, torch::tensor(double(x.size(0)), torch::kFloat64)});
  group.all_reduce(totals);
  return (totals[0] / totals[1]).item<double>();
}

}  // namespace

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kBFloat16);
  try {
    demi::distributed::ProcessGroup group;
    const double error = train(group, device, dtype);
    if (group.rank() == 0)
      std::printf("%d ranks, mean squared error %.1e\n", group.world_size(), error);
    return error < 0.05 ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const demi::DeviceError& failed) {  // names the rank that is gone, or the wrong variable
    std::fprintf(stderr, "%s\n", failed.what());
    return 4;
  }
}
