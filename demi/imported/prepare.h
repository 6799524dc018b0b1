#pragma once

#include <memory>
#include <string>
#include <vector>

#include "demi/imported/graph.h"
#include "demi/imported/prepared_graph.h"
#include "demi/imported/training_mode.h"

namespace demi::imported {

/// The role of a graph's input.
struct InputRole {
  bool is_state = false;  // a parameter, buffer or constant of the model
  std::string name = {};  // Python's, of state

  bool counts_batches() const { return name.ends_with("num_batches_tracked"); }
};

/// Looks the operators up and puts their arguments in order. Throws UsageError, which names module
/// and Python line: for an operator that this LibTorch lacks, arguments that it does not take, and
/// for what cannot be trained.
std::shared_ptr<const PreparedGraph> prepare(const Graph& graph,
                                             const std::vector<InputRole>& inputs,
                                             const TrainingFlags& flags);

/// "aten::conv2d in block.conv (net.py:15 in forward)".
std::string describe(const Node& node);

}  // namespace demi::imported
