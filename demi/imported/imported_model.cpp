#include "demi/imported/imported_model.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <utility>

#include "demi/core/error.h"
#include "demi/core/libtorch.h"
#include "demi/imported/arguments.h"
#include "demi/imported/frozen_parts.h"
#include "demi/imported/fusion.h"
#include "demi/imported/loaded_model.h"
#include "demi/imported/outputs.h"
#include "demi/imported/script_file.h"
#include "demi/imported/script_model.h"
#include "demi/tensor/module_tensors.h"

namespace demi {
namespace {

using imported::LoadedModel;
using imported::StateKind;
using imported::StateTensor;

/// The tensor in the format, if it has the dimensions of it.
at::Tensor in_format(const at::Tensor& tensor, at::MemoryFormat format) {
  if (format == at::MemoryFormat::Preserve || !tensor.defined()) return tensor;
  const bool fits = format == at::MemoryFormat::Contiguous ||
                    (format == at::MemoryFormat::ChannelsLast && tensor.dim() == 4) ||
                    (format == at::MemoryFormat::ChannelsLast3d && tensor.dim() == 5);
  return fits ? tensor.contiguous(format) : tensor;
}

}  // namespace

ImportedModelImpl::ImportedModelImpl(const std::filesystem::path& file)
    : torch::nn::Module("ImportedModel") {
  require_libtorch();
  if (imported::is_script_file(file)) {
    script_ = std::make_unique<imported::ScriptModel>(file);
    state_ = script_->state();
    loaded_ = std::make_shared<const LoadedModel>(
        LoadedModel{.normalisations = script_->normalisations(), .notes = script_->notes()});
    imported::register_state(*this, state_, loaded_->normalisations);
    return;
  }
  const imported::Archive archive(file);
  const std::vector<const imported::Program*> programs = imported::pick_programs(archive);
  state_ = imported::read_state(archive, programs);
  loaded_ = std::make_shared<const LoadedModel>(imported::load(programs, state_));
  imported::register_state(*this, state_, loaded_->normalisations);
}

ImportedModelImpl::ImportedModelImpl(std::shared_ptr<const LoadedModel> loaded,
                                     std::vector<StateTensor> state,
                                     std::unique_ptr<imported::ScriptModel> script)
    : torch::nn::Module("ImportedModel"),
      loaded_(std::move(loaded)),
      state_(std::move(state)),
      script_(std::move(script)) {
  imported::register_state(*this, state_, loaded_->normalisations);
}

ImportedModelImpl::~ImportedModelImpl() = default;

c10::IValue ImportedModelImpl::call(const std::vector<c10::IValue>& arguments,
                                    const std::map<std::string, c10::IValue>& keywords) {
  std::shared_ptr<const imported::FrozenParts> frozen = imported::FrozenParts::of(*this);
  if (script_) {
    script_->freeze(frozen.get(), is_training());
    return script_->call(arguments, keywords);
  }
  const imported::GraphCall& graph = is_training() ? *loaded_->train : *loaded_->eval;
  imported::Values leaves =
      imported::flatten_arguments(graph.in_spec, graph.argument_names, arguments, keywords);
  for (c10::IValue& leaf : leaves)
    if (leaf.isTensor()) leaf = in_format(leaf.toTensor(), format_);
  return imported::call(graph, state_, leaves, is_training(), std::move(frozen), fusing_);
}

at::Tensor ImportedModelImpl::forward(const at::Tensor& input, const at::Tensor& second) {
  return only_tensor(second.defined() ? call({input, second}) : call({input}));
}

void ImportedModelImpl::select_output(const std::string& output) {
  const auto require_output = [&](bool is_there, std::string_view mode,
                                  const std::string& accepted) {
    require(is_there, {.where = "ImportedModel.select_output",
                       .what = fmt::format("the network has no such output{}", mode),
                       .seen = output,
                       .accepted = accepted,
                       .advice = "choose one that is there in train and in eval mode, or use "
                                 "call() in place of forward()"});
  };
  if (script_) {
    require_output(script_->has_output(output), "",
                   "what forward returns: " + script_->outputs_text());
  } else {
    const bool is_one = loaded_->train == loaded_->eval;
    for (const auto& graph : {loaded_->train, loaded_->eval})
      require_output(imported::find_output(graph->form, output).has_value(),
                     is_one                    ? ""
                     : graph == loaded_->train ? " in train mode"
                                               : " in eval mode",
                     imported::output_names(graph->form));
  }
  output_ = output;
}

at::Tensor ImportedModelImpl::only_tensor(const c10::IValue& result) const {
  const std::optional<at::Tensor> tensor = imported::find_output(result, output_);
  if (!tensor)
    refuse({.where = "imported.forward",
            .what = output_.empty() ? "the network returns several tensors, or none"
                                    : "the result has no such output",
            .seen = output_.empty() ? imported::output_names(result) : output_,
            .accepted = output_.empty() ? "one" : imported::output_names(result),
            .advice = "choose one with select_output(), or use call() in place of forward()"});
  return *tensor;
}

void ImportedModelImpl::fuse(imported::Fusing fusing) { fusing_ = fusing; }

std::vector<std::string> ImportedModelImpl::fusible() const {
  if (script_) return {};
  std::vector<std::string> places;
  imported::add_fusions(*(is_training() ? loaded_->train : loaded_->eval)->graph, places);
  return places;
}

std::vector<at::Tensor> ImportedModelImpl::parameters(bool recurse) const {
  return tensor::without_names(tensor::each_once(named_parameters(recurse)));
}

void ImportedModelImpl::train(bool on) {
  torch::nn::Module::train(on);
  if (script_) script_->train(on);
}

std::map<std::string, at::Tensor> ImportedModelImpl::state_dict() const {
  std::map<std::string, at::Tensor> tensors;
  for (const StateTensor& one : state_)
    if (one.kind == StateKind::parameter || one.kind == StateKind::buffer)
      tensors[one.name] = one.tensor.detach();
  return tensors;
}

const std::vector<std::string>& ImportedModelImpl::notes() const { return loaded_->notes; }

std::shared_ptr<torch::nn::Module> ImportedModelImpl::clone(
    const std::optional<torch::Device>& device) const {
  std::unique_ptr<imported::ScriptModel> script;
  if (script_) script = std::make_unique<imported::ScriptModel>(script_->copy(device));
  std::vector<StateTensor> state = script ? script->state() : imported::copy_state(state_, device);
  auto copy = std::shared_ptr<ImportedModelImpl>(
      new ImportedModelImpl(loaded_, std::move(state), std::move(script)));
  copy->output_ = output_;
  copy->fusing_ = fusing_;
  copy->format_ = format_;
  copy->train(is_training());
  const auto parts = modules(/*include_self=*/false), copies = copy->modules(false);
  for (std::size_t i = 0; i < parts.size(); ++i) copies[i]->train(parts[i]->is_training());
  return copy;
}

void ImportedModelImpl::clone_(torch::nn::Module& other,
                               const std::optional<torch::Device>& device) {
  const auto copy = std::dynamic_pointer_cast<ImportedModelImpl>(other.clone(device));
  require(copy != nullptr, {.where = "ImportedModel.clone",
                            .what = "the module to be copied is of another type",
                            .seen = other.name(),
                            .accepted = "an ImportedModel",
                            .advice = "register the same modules at each reset()"});
  torch::nn::Module::operator=(*copy);
  loaded_ = copy->loaded_;
  state_ = copy->state_;
  script_ = std::move(copy->script_);
  output_ = copy->output_;
  fusing_ = copy->fusing_;
  format_ = copy->format_;
}

void ImportedModelImpl::move_hidden(std::optional<torch::Device> device,
                                    std::optional<torch::Dtype> dtype) {
  const at::NoGradGuard no_grad;
  for (StateTensor& one : state_) {
    if (one.kind == StateKind::parameter || one.kind == StateKind::buffer) continue;
    if (device) one.tensor = one.tensor.to(*device);
    // As in Python, a buffer follows the model's dtype, and a constant of the code does not.
    if (dtype && one.kind == StateKind::hidden_buffer && one.tensor.is_floating_point())
      one.tensor = one.tensor.to(*dtype);
  }
}

void ImportedModelImpl::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(device, dtype, non_blocking);
  move_hidden(device, dtype);
}

void ImportedModelImpl::to(torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(dtype, non_blocking);
  move_hidden(std::nullopt, dtype);
}

void ImportedModelImpl::to(torch::Device device, bool non_blocking) {
  torch::nn::Module::to(device, non_blocking);
  move_hidden(device, std::nullopt);
}

void ImportedModelImpl::to(torch::MemoryFormat format) {
  require(!script_, {.where = "ImportedModel.to",
                     .what = "TorchScript runs in the memory format that its code chooses",
                     .accepted = "a .pt2 file",
                     .advice = "export the network by torch.export, or call to() in Python"});
  const at::NoGradGuard no_grad;
  for (StateTensor& one : state_) {
    const at::Tensor changed = in_format(one.tensor, format);
    if (!changed.is_same(one.tensor)) one.tensor.set_data(changed);
  }
  format_ = format;
}

}  // namespace demi
