#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "demi/imported/archive.h"
#include "demi/imported/input_check.h"
#include "demi/imported/model_state.h"
#include "demi/imported/prepared_graph.h"

namespace demi::imported {

/// The source of a graph's input: the model's state, or a leaf of forward's arguments.
struct InputSource {
  bool is_state = false;
  std::size_t place = 0;
  /// Written back after the run: autograd, which may save it, gets a copy.
  bool is_written = false;
};

/// An output that is written back.
struct WriteBack {
  std::size_t output;
  InputSource target;
  std::string statistics_of = {};  // the module, if a normalisation keeps them in training alone
  bool follows_network = false;    // of these: not written in eval mode
};

/// A count of batches that no node of the graph keeps.
struct BatchCount {
  std::size_t place;
  std::string module;
};

/// A graph with its signature, ready to run.
struct GraphCall {
  std::shared_ptr<const PreparedGraph> graph;
  InputCheck check;
  TreeSpec in_spec, out_spec;
  std::vector<std::string> argument_names;
  std::vector<InputSource> inputs;
  std::vector<WriteBack> writes;
  std::vector<std::size_t> results;  // which outputs forward returns
  c10::IValue form;  // a result with empty tensors, by which outputs are looked up before a run
  std::vector<BatchCount> counts;  // one for each batch norm and place
};

/// The part of a model that its copies share. Immutable.
struct LoadedModel {
  std::shared_ptr<const GraphCall> train, eval;
  std::set<std::string> normalisations;  // modules
  std::vector<std::string> notes;
};

/// The graphs of a file for train and eval mode: "model" and "eval", or one for both. Throws
/// UsageError for another choice of graphs.
std::vector<const Program*> pick_programs(const Archive& archive);

LoadedModel load(const std::vector<const Program*>& programs,
                 const std::vector<StateTensor>& state);

/// Runs the graph with this state. `leaves` are forward's arguments.
c10::IValue call(const GraphCall& call, const std::vector<StateTensor>& state, const Values& leaves,
                 bool is_training, std::shared_ptr<const FrozenParts> frozen, Fusing fusing);

}  // namespace demi::imported
