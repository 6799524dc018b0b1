// Trains an exported network as tests/imported_agreement.py does in Python, and saves what it
// computed, in eval mode at the end, too: imported_partner FILE.pt2 INPUTS.safetensors
// OUT.safetensors STEPS fp32|bf16, which is the region of forward. Without arguments it prints
// LibTorch's version.
#include <torch/torch.h>
#include <torch/version.h>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "demi/demi.h"
#include "demi/tensor/module_tensors.h"

namespace {

void add_tensors(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor()) tensors.push_back(value.toTensor());
  if (value.isTuple())
    for (const c10::IValue& element : value.toTupleRef().elements()) add_tensors(element, tensors);
  if (value.isList())
    for (const c10::IValue& element : value.toListRef()) add_tensors(element, tensors);
  if (value.isGenericDict())
    for (const auto& entry : value.toGenericDict()) add_tensors(entry.value(), tensors);
}

/// "0", "1", ... of the file: the arguments by place.
std::vector<c10::IValue> arguments_of(const demi::checkpoint::NamedTensors& tensors) {
  std::vector<c10::IValue> arguments;
  for (std::size_t i = 0; tensors.contains(std::to_string(i)); ++i)
    arguments.emplace_back(tensors.at(std::to_string(i)));
  return arguments;
}

void run(char** argv) {
  demi::ImportedModel model(argv[1]);
  const auto arguments = arguments_of(demi::checkpoint::load_safetensors(argv[2]).tensors);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  const bool in_bf16 = std::string_view(argv[5]) == "bf16";
  demi::checkpoint::NamedTensors out;
  torch::manual_seed(1);
  for (int step = 0; step < std::stoi(argv[4]); ++step) {
    optimizer.zero_grad();
    std::vector<at::Tensor> outputs;
    {
      const demi::Autocast region(torch::kCPU, {.dtype = torch::kBFloat16, .enabled = in_bf16});
      add_tensors(model->call(arguments), outputs);
    }
    at::Tensor loss = torch::zeros({});
    for (const at::Tensor& output : outputs)
      if (output.requires_grad()) loss = loss + output.to(torch::kFloat).square().mean();
    if (loss.requires_grad()) loss.backward();
    if (step == 0) {
      for (std::size_t i = 0; i < outputs.size(); ++i)
        out["output." + std::to_string(i)] = outputs[i].detach().clone();
      for (const auto& [name, parameter] : demi::tensor::parameters_once(*model))
        if (parameter.grad().defined()) out["grad." + name] = parameter.grad().to_dense().clone();
    }
    optimizer.step();
  }
  for (const auto& [name, tensor] : model->state_dict()) out["weight." + name] = tensor.clone();
  model->eval();
  std::vector<at::Tensor> results;
  add_tensors(model->call(arguments), results);
  for (std::size_t i = 0; i < results.size(); ++i)
    out["eval." + std::to_string(i)] = results[i].detach().clone();
  demi::checkpoint::save_safetensors(argv[3], out);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1) std::cout << TORCH_VERSION << '\n';
  if (argc != 6) return argc == 1 ? 0 : 2;
  try {
    run(argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
