#include "demi/imported/script_model.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "demi/core/error.h"
#include "demi/core/libtorch.h"
#include "demi/imported/script_file.h"
#include "demi/imported/script_settings.h"
#include "demi/imported/training_mode.h"

namespace demi::imported {
namespace {

using ScriptNode = torch::jit::Node;

torch::jit::Module read_script(const std::filesystem::path& file) {
  check_script_file(file);
  try {
    return torch::jit::load(file.string(), c10::Device(c10::kCPU));
  } catch (const std::exception& error) {
    const auto* own = dynamic_cast<const c10::Error*>(&error);
    refuse<DataError>({.where = "imported.read",
                       .what = file.string() + " cannot be read as a TorchScript file",
                       .seen = own != nullptr ? own->what_without_backtrace() : error.what(),
                       .accepted = fmt::format("what torch.jit.save of PyTorch {} or older writes",
                                               compiled_libtorch()),
                       .advice = "save it again, with the operations that this LibTorch has"});
  }
}

void each_node(const torch::jit::Block& block, const std::function<void(const ScriptNode&)>& use) {
  for (const ScriptNode* node : block.nodes()) {
    use(*node);
    for (const torch::jit::Block* inner : node->blocks()) each_node(*inner, use);
  }
}

/// Calls use(node) for each node of forward and of all that it calls.
void each_node(const torch::jit::Module& module,
               const std::function<void(const ScriptNode&)>& use) {
  const std::shared_ptr<torch::jit::Graph> graph = module.get_method("forward").graph()->copy();
  torch::jit::Inline(*graph);
  each_node(*graph->block(), use);
}

std::string line_of(const ScriptNode& node) {
  const torch::jit::SourceRange own = node.sourceRange();
  const auto place = own.findSourceRangeThatGenerated().value_or(own).file_line_col();
  return place ? fmt::format("{}:{}", std::get<0>(*place), std::get<1>(*place)) : "an unknown line";
}

void require_forward(const torch::jit::Module& module, const std::filesystem::path& file) {
  require(module.find_method("forward").has_value(),
          {.where = "imported.ImportedModel",
           .what = file.string() + " has no forward",
           .seen = fmt::format("{} methods", module.get_methods().size()),
           .accepted = "a module with the method forward"});
}

void refuse_regions(const torch::jit::Module& module) {
  each_node(module, [](const ScriptNode& node) {
    if (node.kind() != c10::prim::Enter) return;
    const std::string type = node.input(0)->type()->repr_str();
    if (type.find("autocast") == std::string::npos) return;
    refuse({.where = "imported.ImportedModel",
            .what = line_of(*node.input(0)->node()) +
                    ": the network has a region of autocast of its own",
            .seen = type,
            .accepted = "TorchScript without them, in which they mean nothing to an interpreter "
                        "without LibTorch's autocast pass",
            .advice = "export it to a .pt2 file (demi_export.py), where they are honoured"});
  });
}

/// How many tensors a value of this type may hold.
std::size_t most_tensors(const c10::Type& type) {
  constexpr std::size_t kAny = std::numeric_limits<std::size_t>::max();
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return 1;
    case c10::TypeKind::OptionalType:
    case c10::TypeKind::TupleType: {
      std::size_t all = 0;
      for (const c10::TypePtr& part : type.containedTypes()) {
        const std::size_t more = most_tensors(*part);
        all = more > kAny - all ? kAny : all + more;
      }
      return all;
    }
    case c10::TypeKind::IntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::StringType:
    case c10::TypeKind::NoneType:
      return 0;
    default:
      return kAny;  // a list, a dict: known when it has run
  }
}

}  // namespace

ScriptModel::ScriptModel(torch::jit::Module module) : module_(std::move(module)) {}

ScriptModel::ScriptModel(const std::filesystem::path& file) : module_(read_script(file)) {
  require_forward(module_, file);
  refuse_regions(module_);
  train(true);
}

void ScriptModel::train(bool on) {
  // torch::jit::Module::train() asserts that each module has the flag, which frozen ones have not.
  for (const torch::jit::Module& one : module_.modules())
    if (const auto slot = one.type()->findAttributeSlot("training"))
      one._ivalue()->setSlot(*slot, on);
}

void ScriptModel::freeze(const FrozenParts* parts, bool is_training) {
  if (parts == nullptr && !has_frozen_) return;
  for (const auto& item : module_.named_modules()) {
    const auto slot = item.value.type()->findAttributeSlot("training");
    const bool on = is_training && !(parts != nullptr && parts->hold(item.name));
    // Several threads may run it: nothing is written that is there already.
    if (slot && item.value._ivalue()->getSlot(*slot).toBool() != on)
      item.value._ivalue()->setSlot(*slot, on);
  }
  if (has_frozen_ != (parts != nullptr)) has_frozen_ = parts != nullptr;
}

c10::IValue ScriptModel::call(const std::vector<c10::IValue>& arguments,
                              const std::map<std::string, c10::IValue>& keywords) {
  const ScriptSettings settings;
  try {
    return module_.forward(arguments, torch::jit::Kwargs(keywords.begin(), keywords.end()));
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const std::exception& error) {
    const auto* own = dynamic_cast<const c10::Error*>(&error);
    refuse({.where = "imported.forward",
            .what = "the TorchScript network failed",
            .seen = own != nullptr ? own->what_without_backtrace() : error.what(),
            .accepted = "what Python's forward takes",
            .advice = "look at the inputs, and at that line"});
  }
}

ScriptModel ScriptModel::copy(const std::optional<c10::Device>& device) const {
  const at::NoGradGuard no_grad;
  ScriptModel made(module_.deepcopy());
  const std::vector<StateTensor> from = state(), to = made.state();
  for (std::size_t i = 0; i < to.size(); ++i) {
    at::Tensor tensor = to[i].tensor;
    if (device) tensor.set_data(tensor.to(*device));
    tensor.set_requires_grad(from[i].tensor.requires_grad());
  }
  return made;
}

std::vector<StateTensor> ScriptModel::state() const {
  std::vector<StateTensor> state;
  for (const auto& parameter : module_.named_parameters())
    state.push_back({.kind = StateKind::parameter,
                     .name = parameter.name,
                     .tensor = parameter.value,
                     .is_trainable = parameter.value.requires_grad()});
  for (const auto& buffer : module_.named_buffers())
    state.push_back({.kind = StateKind::buffer, .name = buffer.name, .tensor = buffer.value});
  return state;
}

std::set<std::string> ScriptModel::normalisations() const {
  std::set<std::string> names;
  for (const auto& item : module_.named_modules()) {
    const std::string type = item.value.type()->name()->qualifiedName();
    for (const char* folder : {"batchnorm", "instancenorm", "normalization"})
      if (type.find(std::string("torch.nn.modules.") + folder) != std::string::npos)
        names.insert(item.name);
  }
  return names;
}

std::vector<std::string> ScriptModel::notes() const {
  std::map<std::string, int> fixed;
  each_node(module_, [&](const ScriptNode& node) {
    const c10::FunctionSchema* schema = node.maybeSchema();
    if (schema == nullptr) return;
    const std::string flag(training_flag(schema->name()));
    const std::optional<int> place =
        flag.empty() ? std::nullopt : schema->argumentIndexWithName(flag);
    if (place &&
        node.input(static_cast<std::size_t>(*place))->node()->kind() == c10::prim::Constant)
      ++fixed[schema->name()];
  });
  if (fixed.empty()) return {};
  std::string text;
  for (const auto& [op, count] : fixed)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, op);
  return {text +
          " of the TorchScript have their mode fixed, in train() and eval() alike: a traced "
          "network has that of its tracing"};
}

bool ScriptModel::has_output(const std::string& output) const {
  const bool is_number = !output.empty() && output.size() < 9 &&
                         std::ranges::all_of(output, [](char c) { return c >= '0' && c <= '9'; });
  const c10::TypePtr type =
      module_.get_method("forward").function().getSchema().returns()[0].type();
  if (type->kind() == c10::TypeKind::DictType) return true;  // its keys are known when it has run
  return is_number && std::stoul(output) < most_tensors(*type);
}

std::string ScriptModel::outputs_text() const {
  return module_.get_method("forward").function().getSchema().returns()[0].type()->annotation_str();
}

}  // namespace demi::imported
