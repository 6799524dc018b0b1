#include "demi/imported/loaded_model.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "demi/core/error.h"
#include "demi/imported/arguments.h"
#include "demi/imported/normalisations.h"
#include "demi/imported/prepare.h"
#include "demi/imported/training_mode.h"

namespace demi::imported {
namespace {

constexpr std::string_view kCount = "num_batches_tracked";

class CallBuilder {
 public:
  CallBuilder(const Program& program, const std::vector<StateTensor>& state,
              const TrainingFlags& flags)
      : program_(program), state_(state), flags_(flags) {}

  GraphCall build() {
    std::vector<InputRole> roles;
    for (const InputSpec& input : program_.inputs) roles.push_back(add_input(input));
    GraphCall call{.graph = prepare(program_.graph, roles, flags_),
                   .check = InputCheck(program_),
                   .in_spec = program_.in_spec,
                   .out_spec = program_.out_spec,
                   .argument_names = program_.argument_names,
                   .inputs = std::move(inputs_)};
    for (std::size_t i = 0; i < program_.outputs.size(); ++i) add_output(i, call);
    for (InputSource& input : call.inputs)
      input.is_written = std::ranges::any_of(call.writes, [&](const WriteBack& write) {
        return write.target.is_state == input.is_state && write.target.place == input.place;
      });
    if (flags_.rewrites() && flags_.mode() == ExportedMode::eval) add_counts(call);
    return call;
  }

 private:
  InputRole add_input(const InputSpec& input) {
    if (input.kind == InputKind::user || input.kind == InputKind::fixed) {
      leaf_of_[input.name] = leaves_;
      inputs_.push_back({.place = leaves_++});
      return {};
    }
    const std::ptrdiff_t place = find_state(state_, program_, input);
    require(place >= 0, {.where = "imported.ImportedModel",
                         .what = "the network reads an object that is no tensor",
                         .seen = input.target,
                         .accepted = "parameters, buffers and constants",
                         .advice = "write it without custom objects and export it again"});
    inputs_.push_back({.is_state = true, .place = static_cast<std::size_t>(place)});
    const StateTensor& state = state_[inputs_.back().place];
    return {.is_state = true,
            .is_trainable = state.is_trainable,
            .counts_batches = state.name.ends_with(kCount)};
  }

  void add_output(std::size_t place, GraphCall& call) const {
    const OutputSpec& output = program_.outputs[place];
    if (output.kind == OutputKind::user || output.kind == OutputKind::loss)
      call.results.push_back(place);
    if (output.kind == OutputKind::user_input) {
      const auto leaf = leaf_of_.find(output.target);
      require(leaf != leaf_of_.end(), {.where = "imported.ImportedModel",
                                       .what = "the network writes to an input that it has not",
                                       .seen = output.target});
      call.writes.push_back({.output = place, .target = {.place = leaf->second}});
    }
    if (output.kind == OutputKind::buffer || output.kind == OutputKind::parameter)
      call.writes.push_back(
          {.output = place,
           .target = {.is_state = true, .place = state_named(output.target)},
           .only_in_training = flags_.rewrites() && output.target.ends_with(kCount)});
  }

  std::size_t state_named(const std::string& name) const {
    const auto found = std::ranges::find(state_, name, &StateTensor::name);
    require(found != state_.end(), {.where = "imported.ImportedModel",
                                    .what = "the network writes to a buffer that it has not",
                                    .seen = name});
    return static_cast<std::size_t>(found - state_.begin());
  }

  /// A graph of eval mode counts no batches: those of each batch_norm that now follows the mode.
  void add_counts(GraphCall& call) const {
    for (const Node& node : program_.graph.nodes) {
      if (operator_name(node.target) != "aten::batch_norm") continue;
      const auto mean = std::ranges::find(node.inputs, "running_mean", &NamedArgument::name);
      const auto* value = mean == node.inputs.end() ? nullptr : mean->argument.as<ValueName>();
      if (value == nullptr) continue;
      const auto input = std::ranges::find(program_.inputs, value->name, &InputSpec::name);
      if (input == program_.inputs.end()) continue;
      const std::string name =
          input->target.substr(0, input->target.rfind('.') + 1) + std::string(kCount);
      const auto found = std::ranges::find(state_, name, &StateTensor::name);
      if (found != state_.end())
        call.counts.push_back(static_cast<std::size_t>(found - state_.begin()));
    }
  }

  const Program& program_;
  const std::vector<StateTensor>& state_;
  const TrainingFlags& flags_;
  std::vector<InputSource> inputs_;
  std::map<std::string, std::size_t> leaf_of_;
  std::size_t leaves_ = 0;
};

std::shared_ptr<const GraphCall> build(const Program& program,
                                       const std::vector<StateTensor>& state,
                                       const TrainingFlags& flags) {
  return std::make_shared<const GraphCall>(CallBuilder(program, state, flags).build());
}

void add_notes(const Program& program, ExportedMode mode, bool has_one,
               std::vector<std::string>& notes) {
  if (!program.is_training_dialect)
    notes.push_back(fmt::format(
        "the graph {} was decomposed (run_decompositions): autocast knows fewer of its operations, "
        "so precisions in a region differ from Python's",
        program.name));
  if (!has_one || mode == ExportedMode::unknown) return;
  const bool in_train = mode == ExportedMode::train;
  notes.push_back(fmt::format(
      "the file has one graph, exported in {} mode: in {} mode dropout, batch norm and its count "
      "of "
      "batches are switched {}; whatever else Python does otherwise there is not known "
      "(scripts/demi_export.py writes both graphs)",
      in_train ? "train" : "eval", in_train ? "eval" : "train", in_train ? "off" : "on"));
}

c10::Device device_of(const std::vector<StateTensor>& state, const Values& leaves) {
  for (const StateTensor& one : state)
    if (one.kind != StateKind::constant) return one.tensor.device();
  for (const c10::IValue& leaf : leaves)
    if (leaf.isTensor() && leaf.toTensor().defined()) return leaf.toTensor().device();
  return c10::kCPU;
}

void write_back(const GraphCall& call, const std::vector<StateTensor>& state, const Values& leaves,
                const Values& outputs, bool is_training) {
  const at::NoGradGuard no_grad;
  for (const WriteBack& write : call.writes) {
    if (write.only_in_training && !is_training) continue;
    const at::Tensor target = write.target.is_state ? state[write.target.place].tensor
                                                    : leaves[write.target.place].toTensor();
    target.copy_(outputs[write.output].toTensor());
  }
  if (!is_training) return;
  for (const std::size_t place : call.counts) state[place].tensor.add_(1);
}

}  // namespace

std::vector<const Program*> pick_programs(const Archive& archive) {
  const std::vector<Program>& programs = archive.programs();
  std::vector<const Program*> picked{&programs[0]};
  if (programs.size() == 1) return picked;
  std::string names;
  for (const Program& program : programs) names += (names.empty() ? "" : ", ") + program.name;
  const auto eval = std::ranges::find(programs, "eval", &Program::name);
  require(programs.size() == 2 && programs[0].name == "model" && eval != programs.end(),
          {.where = "imported.ImportedModel",
           .what = archive.path().string() + " holds several networks",
           .seen = names,
           .accepted = "one, or its graphs \"model\" (train) and \"eval\"",
           .advice = "export each to a file of its own"});
  picked.push_back(&*eval);
  return picked;
}

LoadedModel load(const std::vector<const Program*>& programs,
                 const std::vector<StateTensor>& state) {
  const bool has_one = programs.size() == 1;
  LoadedModel loaded{.normalisations = normalisation_modules(programs)};
  for (const Program* program : programs) {
    const ExportedMode mode = exported_mode(program->graph);
    const TrainingFlags flags(mode, has_one);
    auto& place = program == programs[0] ? loaded.train : loaded.eval;
    place = build(*program, state, flags);
    add_notes(*program, mode, has_one, loaded.notes);
  }
  if (has_one) loaded.eval = loaded.train;
  return loaded;
}

c10::IValue call(const GraphCall& call, const std::vector<StateTensor>& state, const Values& leaves,
                 bool is_training) {
  call.check(leaves);
  const RunState run{.device = device_of(state, leaves), .is_training = is_training};
  Values inputs;
  inputs.reserve(call.inputs.size());
  for (const InputSource& source : call.inputs) {
    inputs.push_back(source.is_state ? c10::IValue(state[source.place].tensor)
                                     : leaves[source.place]);
    if (source.is_written && at::GradMode::is_enabled())
      inputs.back() = inputs.back().toTensor().clone();
  }
  const Values outputs = call.graph->run(inputs, run);
  write_back(call, state, leaves, outputs, is_training);
  Values results;
  for (const std::size_t place : call.results) results.push_back(outputs[place]);
  return unflatten(call.out_spec, results);
}

}  // namespace demi::imported
