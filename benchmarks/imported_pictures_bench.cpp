// A training step of a network of pictures from a .pt2 file: each memory format, with and without
// batch norms that run with what follows them. benchmarks/imported_pictures.py exports the network
// and times Python beside it:
//
//   imported_pictures_bench FILE.pt2 BATCH SIZE ROUNDS
//
// One batch, repeated; cross entropy; SGD with momentum; bf16 in a region, and FP32. Losses of the
// first steps are compared before anything is timed. Rounds take turns; shown is the least time.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <vector>

#include "demi/demi.h"

namespace {

using Clock = std::chrono::steady_clock;
using demi::imported::Fusing;

struct Way {
  const char* name;
  at::MemoryFormat format;
  Fusing fusing;
};
constexpr Way kWays[] = {
    {"contiguous, one by one", at::MemoryFormat::Contiguous, Fusing::never},
    {"contiguous, fused", at::MemoryFormat::Contiguous, Fusing::always},
    {"channels_last, one by one", at::MemoryFormat::ChannelsLast, Fusing::never},
    {"channels_last, fused", at::MemoryFormat::ChannelsLast, Fusing::always}};

struct Run {
  demi::ImportedModel model;
  std::unique_ptr<demi::optim::SGD> optimizer;
  at::Tensor input, target;
  bool in_bf16;
  double least = std::numeric_limits<double>::infinity();

  Run(const char* file, const Way& way, bool bf16, const at::Tensor& x, const at::Tensor& y)
      : model(std::filesystem::path(file)),
        input(x.contiguous(way.format)),
        target(y),
        in_bf16(bf16) {
    model->to(way.format);
    model->fuse(way.fusing);
    optimizer = std::make_unique<demi::optim::SGD>(model->parameters(),
                                                   demi::optim::SGDOptions(0.01).momentum(0.9));
  }
  double step() {
    optimizer->zero_grad();
    at::Tensor output;
    if (in_bf16) {
      const demi::Autocast region(torch::kCPU, torch::kBFloat16);
      output = model->forward(input);
    } else {
      output = model->forward(input);
    }
    const at::Tensor loss = at::cross_entropy_loss(output.to(at::kFloat), target);
    loss.backward();
    optimizer->step();
    return loss.item<double>();
  }
  void time() {
    const auto start = Clock::now();
    step();
    least =
        std::min(least, std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "imported_pictures_bench FILE.pt2 BATCH SIZE ROUNDS\n");
    return 2;
  }
  const std::int64_t batch = std::atoll(argv[2]), size = std::atoll(argv[3]);
  const int rounds = std::atoi(argv[4]);
  demi::keep_memory();
  const demi::FlushSubnormals flush;
  torch::manual_seed(0);
  const at::Tensor x = at::randn({batch, 3, size, size});
  const at::Tensor y = at::randint(0, 10, {batch}, at::kLong);
  std::vector<std::unique_ptr<Run>> runs;
  std::vector<double> losses;
  for (const bool bf16 : {false, true})
    for (const Way& way : kWays) {
      runs.push_back(std::make_unique<Run>(argv[1], way, bf16, x, y));
      double loss = 0;
      for (int i = 0; i < 3; ++i) loss = runs.back()->step();
      losses.push_back(loss);
      if (std::abs(loss - losses[0]) > 0.05 * losses[0] + 0.05) {
        std::printf("%s: loss %.4f for %.4f: not timed\n", way.name, loss, losses[0]);
        return 1;
      }
    }
  for (int i = 0; i < rounds; ++i)
    for (const auto& run : runs) run->time();
  for (std::size_t i = 0; i < runs.size(); ++i)
    std::printf("demi    %-5s %-27s %8.1f ms a step, loss %.4f\n",
                runs[i]->in_bf16 ? "bf16" : "fp32", kWays[i % std::size(kWays)].name,
                runs[i]->least, losses[i]);
  return 0;
}
