#pragma once

#include "demi/imported/prepared_graph.h"

namespace demi::imported {

/// Runs the graph within a graph: without gradients, in a region, or with its values computed anew
/// in backward.
Values run_nested(const Nested& nested, Values inputs, const RunState& state);

}  // namespace demi::imported
