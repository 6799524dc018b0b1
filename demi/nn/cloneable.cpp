#include "demi/nn/cloneable.h"

#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "demi/autocast/parts.h"
#include "demi/core/error.h"

namespace demi::nn {

void require_type(const torch::nn::Module& module, const std::type_info& known) {
  if (typeid(module) == known) return;
  refuse({.where = "nn.Cloneable.clone",
          .what = "a class derived from one of demi's modules has no clone() of its own",
          .seen = module.name(),
          .accepted = "demi's own classes",
          .advice = "override clone(), or make it a torch::nn::Cloneable with the module as a "
                    "member"});
}

void complete_copy(const torch::nn::Module& original, const torch::nn::Module& copy) {
  // A module comes before its parts, whose modes train() sets with its own.
  const auto modules = original.modules(/*include_self=*/false), copies = copy.modules(false);
  for (std::size_t i = 0; i < modules.size(); ++i)
    if (copies[i]->is_training() != modules[i]->is_training())
      copies[i]->train(modules[i]->is_training());
  const std::vector<at::Tensor> from = original.parameters(), to = copy.parameters();
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (!from[i].requires_grad()) to[i].set_requires_grad(false);
    if (!parts_in_use()) continue;
    if (auto mark = mark_of_part(from[i])) mark_part(to[i], *std::move(mark));
  }
}

void print_type(const torch::nn::Module& module, std::ostream& stream) {
  constexpr std::string_view kImpl = "Impl";
  std::string_view name = module.name();
  if (name.ends_with(kImpl)) name.remove_suffix(kImpl.size());
  stream << name;
}

}  // namespace demi::nn
