#include "demi/imported/normalisations.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "demi/imported/tensor_names.h"
#include "demi/imported/training_mode.h"

namespace demi::imported {
namespace {

// Operators of native_functions.yaml; the last ones are in graphs of run_decompositions().
constexpr std::string_view kOperators[] = {
    "aten::batch_norm",
    "aten::instance_norm",
    "aten::layer_norm",
    "aten::group_norm",
    "aten::rms_norm",
    "aten::native_batch_norm",
    "aten::_native_batch_norm_legit",
    "aten::_native_batch_norm_legit_no_training",
    "aten::_native_batch_norm_legit_functional",
    "aten::native_layer_norm",
    "aten::native_group_norm",
    "aten::_fused_rms_norm",
};
constexpr std::string_view kOwn[] = {"weight", "bias", "running_mean", "running_var"};

class Reads {
 public:
  void look_at(const Graph& graph, const TensorNames& names) {
    for (const Node& node : graph.nodes) {
      const bool is_normalisation = std::ranges::count(kOperators, operator_name(node.target)) > 0;
      const auto nested = find_subgraph(node);
      for (auto input = node.inputs.begin(); input != nested; ++input)
        add(input->argument, names, is_normalisation && std::ranges::count(kOwn, input->name) > 0);
      if (nested != node.inputs.end())
        look_at(*nested->argument.as<SubGraph>()->graph, names_within(node, names));
    }
  }

  std::set<std::string> modules() const {
    std::set<std::string> found, others;
    for (const auto& [tensor, is_read_by_one] : is_read_by_one_)
      (is_read_by_one ? found : others).insert(module_of(tensor));
    for (const std::string& other : others) found.erase(other);
    return found;
  }

 private:
  void add(const Argument& argument, const TensorNames& names, bool by_normalisation) {
    if (const auto* list = argument.as<Arguments>())
      for (const Argument& element : *list) add(element, names, by_normalisation);
    const std::string_view name = tensor_name(argument, names);
    const bool counts_batches = name.ends_with("num_batches_tracked");  // an integer
    if (!name.empty() && !counts_batches) is_read_by_one_[std::string(name)] |= by_normalisation;
  }

  std::map<std::string, bool> is_read_by_one_;  // by Python's name of the tensor
};

}  // namespace

std::set<std::string> normalisation_modules(const std::vector<const Program*>& programs) {
  Reads reads;
  for (const Program* program : programs) reads.look_at(program->graph, tensor_names(*program));
  return reads.modules();
}

}  // namespace demi::imported
