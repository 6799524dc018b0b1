// A user's program on the lab: a model of the registry learns to write a text, which it then does.
#include <lab/data/token_windows.h>
#include <lab/generate/sampling.h>
#include <lab/models/gpt.h>
#include <lab/models/registry.h>
#include <lab/tokens/tokenizer.h>
#include <torch/optim/adam.h>

#include <iostream>
#include <string>
#include <vector>

int main() {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "abcd";
  const auto tokenizer = demi::tokens::characters_of(text);
  const std::vector<int32_t> tokens = tokenizer->encode(text);
  const demi::data::RandomWindows windows(
      {.source = demi::tokens::in_memory(tokens), .size = std::ssize(tokens)},
      {.context = 8, .batch_size = 4, .batches = 40});
  demi::models::GPT model(demi::models::GPTOptions{
      .vocabulary = tokenizer->size(), .context = 8, .width = 16, .layers = 1, .heads = 2});
  torch::optim::Adam adam(model->parameters(), 1e-2);
  for (int64_t step = 0; step < windows.batches(); ++step) {
    const demi::data::Batch batch = windows.batch(0, step);
    adam.zero_grad();
    model->loss(batch.input, batch.target).backward();
    adam.step();
  }
  const at::Tensor logits = model->forward(windows.batch(0, 0).input.slice(0, 0, 1)).select(1, -1);
  const int32_t next =
      demi::generate::draw({logits.const_data_ptr<float>(), 4}, {.temperature = 0}, 0, 8);
  const int64_t last = windows.batch(0, 0).target[0][-1].item<int64_t>();
  std::cout << "after the window comes " << tokenizer->decode({&next, 1}) << '\n';

  const demi::train::Network mlp = demi::models::make_model(
      "mlp", {.in = 8, .out = 4, .settings = {{"depth", "2"}}}, /*seed=*/0);
  const bool has_its_size = demi::models::parameter_count(*mlp.module) ==
                            8 * 8 + 8 + 8 * 4 + 4;  // two linear layers with biases
  return next == last && has_its_size ? 0 : 1;
}
