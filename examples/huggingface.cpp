// A GPT-2 as Hugging Face's transformers saves it goes on in C++: its tokenizer and its weights are
// read, it is trained in mixed precision, and written in 16 bits for transformers' from_pretrained.
//
//     huggingface [DEVICE [DTYPE [FOLDER]]]
//
// Without FOLDER: a very small one that tests/fixtures/huggingface/make.py made.
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "demi/demi.h"
#include "examples/arguments.h"
#include "lab/huggingface/folder.h"
#include "lab/huggingface/model.h"
#include "lab/huggingface/write.h"
#include "lab/models/gpt.h"
#include "lab/tokens/tokenizer.h"

namespace {

namespace fs = std::filesystem;
using demi::models::GPT;

GPT network_of(const demi::huggingface::Model& model) {
  GPT network(model.options);
  demi::checkpoint::restore({.model = model.weights},
                            {.models = {network.ptr().get()}, .random = false});
  return network;
}

}  // namespace

int main(int argc, char** argv) {
  const torch::Device device = device_named(argc > 1 ? argv[1] : "cpu");
  const torch::Dtype dtype = dtype_named(argc > 2 ? argv[2] : "bf16");
  // Also the folder of a file in it, or models--NAME in the cache of huggingface_hub.
  const auto folder = demi::huggingface::folder_of(
      argc > 3 ? argv[3] : DEMI_EXAMPLES "/../tests/fixtures/huggingface/gpt2");
  if (!folder) {
    std::fprintf(stderr, "no folder of Hugging Face's: %s\n", argv[3]);
    return 2;
  }
  const auto description = demi::huggingface::read_description(*folder);
  const auto tokenizer = demi::tokens::tokenizer_of(description.tokenizer);
  if (!tokenizer) {
    std::fprintf(stderr, "no tokenizer: %s\n", description.no_tokenizer.c_str());
    return 2;
  }
  demi::huggingface::Model model = demi::huggingface::read_model(*folder);
  GPT network = network_of(model);
  network->to(device);

  const auto tokens = torch::tensor(tokenizer->encode("to be, or not")).to(torch::kLong);
  const auto row = tokens.slice(0, 0, model.options.context + 1).unsqueeze(0).to(device);
  const auto input = row.slice(1, 0, -1), target = row.slice(1, 1).contiguous();
  demi::optim::AdamW optimizer(network->parameters(), demi::optim::AdamWOptions(1e-2));
  demi::GradScaler scaler({.enabled = dtype == torch::kHalf});
  double first = 0, last = 0;
  for (int step = 0; step < 40; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      const demi::Autocast region(device.type(), dtype);
      loss = network->loss(input, target);
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  std::printf("loss %.3f -> %.3f in 40 steps\n", first, last);

  network->to(torch::kCPU);
  model.weights =
      demi::checkpoint::capture({.models = {network.ptr().get()}, .random = false}).model;
  const fs::path out = fs::temp_directory_path() / ("demi-gpt2-" + std::to_string(getpid()));
  for (const std::string& file : demi::huggingface::write_model(
           out, model, {.dtype = dtype, .tokenizer = description.tokenizer}))
    std::printf("%s\n", file.c_str());
  const torch::NoGradGuard no_grad;
  GPT again = network_of(demi::huggingface::read_model(out));
  const double saved = again->loss(input.to(torch::kCPU), target.to(torch::kCPU)).item<double>();
  fs::remove_all(out);
  std::printf("loss of what was written %.3f\n", saved);
  return last < first / 2 && saved < first / 2 ? EXIT_SUCCESS : EXIT_FAILURE;
}
