#include "demi/imported/loaded_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "demi/core/error.h"
#include "demi/imported/arguments.h"
#include "demi/imported/lost_gradients.h"
#include "demi/imported/normalisations.h"
#include "demi/imported/prepare.h"
#include "demi/imported/tensor_names.h"
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
    if (flags_.rewrites() && flags_.mode() == ExportedMode::eval)
      add_counts(program_.graph, tensor_names(program_), call);
    call.form = make_form();
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
    return {.is_state = true, .name = state_[inputs_.back().place].name};
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
           .statistics_of = is_statistic(output.target) ? module_of(output.target) : "",
           .follows_network = flags_.rewrites()});
  }

  static bool is_statistic(std::string_view name) {
    return name.ends_with(kCount) || name.ends_with("running_mean") ||
           name.ends_with("running_var");
  }

  c10::IValue make_form() const {
    Values leaves;
    for (const OutputSpec& output : program_.outputs)
      if (output.kind == OutputKind::user || output.kind == OutputKind::loss)
        leaves.push_back(output.is_tensor ? c10::IValue(at::empty({0})) : c10::IValue());
    return unflatten(program_.out_spec, leaves);
  }

  std::size_t state_named(const std::string& name) const {
    const auto found = std::ranges::find(state_, name, &StateTensor::name);
    require(found != state_.end(), {.where = "imported.ImportedModel",
                                    .what = "the network writes to a buffer that it has not",
                                    .seen = name});
    return static_cast<std::size_t>(found - state_.begin());
  }

  /// A graph of eval mode counts no batches: those of each batch_norm that now follows the mode.
  void add_counts(const Graph& graph, const TensorNames& names, GraphCall& call) const {
    for (const Node& node : graph.nodes) {
      if (const auto nested = find_subgraph(node); nested != node.inputs.end())
        add_counts(*nested->argument.as<SubGraph>()->graph, names_within(node, names), call);
      for (const NamedArgument& input : node.inputs) {
        const bool* flag = flag_of(node, input);
        if (operator_name(node.target) != "aten::batch_norm" || !flag || !flags_.follows(*flag))
          continue;
        const auto mean = std::ranges::find(node.inputs, "running_mean", &NamedArgument::name);
        const std::string module = module_of(tensor_name(mean->argument, names));
        const std::string count = module + (module.empty() ? "" : ".") + std::string(kCount);
        const auto found = std::ranges::find(state_, count, &StateTensor::name);
        if (found != state_.end())
          call.counts.push_back({static_cast<std::size_t>(found - state_.begin()), module});
      }
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

std::string first_few(const std::vector<std::string>& places) {
  constexpr std::size_t kMost = 5;
  const std::size_t shown = std::min(places.size(), kMost);
  std::string text =
      fmt::format("{}", fmt::join(places.begin(), places.begin() + static_cast<int>(shown), ", "));
  if (places.size() > shown) text += fmt::format(" and {} more", places.size() - shown);
  return text;
}

void note_decomposition(const Program& program, const std::vector<StateTensor>& state,
                        std::vector<std::string>& notes) {
  if (program.is_training_dialect) return;
  notes.push_back(fmt::format(
      "the graph {} was decomposed (run_decompositions): autocast knows fewer of its operations, "
      "so "
      "precisions in a region differ from Python's, and where Python stops a gradient by "
      "torch.no_grad() or detach() nothing stops it: export without run_decompositions() to train",
      program.name));
  const std::vector<std::string> aliases = aliases_of_trained(program, state);
  if (!aliases.empty())
    notes.push_back("if these were detach() in Python, gradients differ from Python's: " +
                    first_few(aliases));
}

/// A note on the differences between the modes that a file with one graph for both leaves open.
std::string note_of_one_graph(ExportedMode mode) {
  constexpr std::string_view kUnknown =
      "whatever else Python does otherwise there is not known (demi_export.py writes both "
      "graphs)";
  switch (mode) {
    case ExportedMode::train:
    case ExportedMode::eval: {
      const bool in_train = mode == ExportedMode::train;
      return fmt::format(
          "the file has one graph, exported in {} mode: in {} mode dropout, batch norm and its "
          "count of batches are switched {}; {}",
          in_train ? "train" : "eval", in_train ? "eval" : "train", in_train ? "off" : "on",
          kUnknown);
    }
    case ExportedMode::contradictory:
      return "the file has one graph, some of whose dropouts and normalisations train and some do "
             "not, so its mode is not known: train() and eval() compute the same, that of the "
             "export (demi_export.py writes both graphs)";
    case ExportedMode::unknown:
      break;
  }
  return "the file has one graph, in which no operation says its mode: train() and eval() compute "
         "the same, that of the export. If Python's forward asks self.training, the other mode is "
         "not known (demi_export.py writes both graphs)";
}

c10::Device device_of(const std::vector<StateTensor>& state, const Values& leaves) {
  for (const StateTensor& one : state)
    if (one.kind != StateKind::constant) return one.tensor.device();
  for (const c10::IValue& leaf : leaves)
    if (leaf.isTensor() && leaf.toTensor().defined()) return leaf.toTensor().device();
  return c10::kCPU;
}

void write_back(const GraphCall& call, const std::vector<StateTensor>& state, const Values& leaves,
                const Values& outputs, const RunState& run) {
  const at::NoGradGuard no_grad;
  const auto keeps = [&](const std::string& module, bool follows_network) {
    return (run.is_training || !follows_network) && !(run.frozen && run.frozen->hold(module));
  };
  for (const WriteBack& write : call.writes) {
    if (!write.statistics_of.empty() && !keeps(write.statistics_of, write.follows_network))
      continue;
    const at::Tensor target = write.target.is_state ? state[write.target.place].tensor
                                                    : leaves[write.target.place].toTensor();
    target.copy_(outputs[write.output].toTensor());
  }
  for (const BatchCount& count : call.counts)
    if (keeps(count.module, true)) state[count.place].tensor.add_(1);
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
    const ExportedMode mode = exported_mode(*program);
    const bool is_trained = program == programs[0];
    if (is_trained) refuse_weights_without_gradients(*program, state);
    (is_trained ? loaded.train : loaded.eval) =
        build(*program, state, TrainingFlags(mode, has_one));
    note_decomposition(*program, state, loaded.notes);
    if (has_one) loaded.notes.push_back(note_of_one_graph(mode));
  }
  if (has_one) loaded.eval = loaded.train;
  return loaded;
}

c10::IValue call(const GraphCall& call, const std::vector<StateTensor>& state, const Values& leaves,
                 bool is_training, std::shared_ptr<const FrozenParts> frozen, Fusing fusing) {
  call.check(leaves);
  const RunState run{.device = device_of(state, leaves),
                     .is_training = is_training,
                     .frozen = std::move(frozen),
                     .fusing = fusing};
  Values inputs;
  inputs.reserve(call.inputs.size());
  for (const InputSource& source : call.inputs) {
    inputs.push_back(source.is_state ? c10::IValue(state[source.place].tensor)
                                     : leaves[source.place]);
    if (source.is_written && at::GradMode::is_enabled())
      inputs.back() = inputs.back().toTensor().clone();
  }
  const Values outputs = call.graph->run(inputs, run);
  write_back(call, state, leaves, outputs, run);
  Values results;
  for (const std::size_t place : call.results) results.push_back(outputs[place]);
  return unflatten(call.out_spec, results);
}

}  // namespace demi::imported
