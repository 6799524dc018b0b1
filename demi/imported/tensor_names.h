#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "demi/imported/graph.h"

namespace demi::imported {

/// Python's names of parameters and buffers, by those of the graph's values.
using TensorNames = std::map<std::string, std::string>;

TensorNames tensor_names(const Program& program);

/// A node's argument that is a graph, or the end: behind it stand the graph's inputs.
std::vector<NamedArgument>::const_iterator find_subgraph(const Node& node);

/// The names within a node's graph, of those around it.
TensorNames names_within(const Node& node, const TensorNames& names);

/// The module of a tensor's name: "block.bn" of "block.bn.weight".
std::string module_of(std::string_view tensor);

/// Python's name of what an argument reads; "": no parameter and no buffer.
std::string_view tensor_name(const Argument& argument, const TensorNames& names);

}  // namespace demi::imported
