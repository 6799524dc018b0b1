// Makes the calls that tests/imported_random_test.py asks for: imported_calls_partner PLAN. A line
// of the plan is a call, its fields separated by tabs: FILE.pt2, inputs and outputs as safetensors,
// train|eval, the output that is selected or nothing, parts that are set to eval mode or nothing,
// separated by commas, fp32|bf16. Prints a line a call: nothing, or what was refused. Without
// arguments it prints LibTorch's version.
#include <torch/torch.h>
#include <torch/version.h>

#include <exception>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "demi/demi.h"
#include "demi/tensor/module_tensors.h"

namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == separator)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

void add_tensors(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor()) tensors.push_back(value.toTensor());
  if (value.isTuple())
    for (const c10::IValue& element : value.toTupleRef().elements()) add_tensors(element, tensors);
  if (value.isList())
    for (const c10::IValue& element : value.toListRef()) add_tensors(element, tensors);
  if (value.isGenericDict())
    for (const auto& entry : value.toGenericDict()) add_tensors(entry.value(), tensors);
}

void run(const std::vector<std::string>& fields) {
  const demi::checkpoint::NamedTensors in =
      demi::checkpoint::load_safetensors(fields.at(1)).tensors;
  demi::ImportedModel model(fields.at(0));
  model->train(fields.at(3) == "train");
  if (!fields.at(4).empty()) model->select_output(fields.at(4));
  if (!fields.at(5).empty())
    for (const std::string& part : split(fields.at(5), ',')) model->named_modules()[part]->eval();
  std::vector<at::Tensor> outputs;
  torch::manual_seed(1);
  {
    const demi::Autocast region(torch::kCPU,
                                {.dtype = torch::kBFloat16, .enabled = fields.at(6) == "bf16"});
    if (fields.at(4).empty())
      add_tensors(model->call({in.at("x")}), outputs);
    else
      outputs.push_back(model->forward(in.at("x")));
  }
  at::Tensor loss = torch::zeros({});
  for (const at::Tensor& output : outputs)
    if (output.requires_grad()) loss = loss + output.to(torch::kFloat).square().mean();
  if (loss.requires_grad()) loss.backward();
  demi::checkpoint::NamedTensors out;
  for (std::size_t i = 0; i < outputs.size(); ++i)
    out["output." + std::to_string(i)] = outputs[i].detach().clone();
  for (const auto& [name, parameter] : demi::tensor::parameters_once(*model))
    if (parameter.grad().defined()) out["grad." + name] = parameter.grad().clone();
  for (const auto& [name, tensor] : model->state_dict()) out["state." + name] = tensor.clone();
  demi::checkpoint::save_safetensors(fields.at(2), out);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1) std::cout << TORCH_VERSION << '\n';
  if (argc != 2) return argc == 1 ? 0 : 2;
  std::ifstream plan(argv[1]);
  for (std::string line; std::getline(plan, line);) {
    std::string refusal;
    try {
      run(split(line, '\t'));
    } catch (const demi::UsageError& error) {
      refusal = std::string("refused: ") + error.what();
    } catch (const std::exception& error) {
      refusal = std::string("failed: ") + error.what();
    }
    for (char& c : refusal)
      if (c == '\n') c = ' ';
    std::cout << refusal << '\n';
  }
  return 0;
}
