#pragma once

#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>
#include <c10/util/complex.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "demi/imported/tree_spec.h"

/// An exported program as its file has it: PyTorch's schema (torch/_export/serde/schema.py, version
/// 8) without what training does not need.
namespace demi::imported {

struct Graph;
struct Argument;

/// A value that a graph's input or node made, by its name.
struct ValueName {
  std::string name;
};

/// A graph that is an argument of an operator ("cond", "checkpoint").
struct SubGraph {
  std::string name;
  std::shared_ptr<const Graph> graph;
};

/// An operator that is an argument, by its name.
struct OperatorName {
  std::string name;
};

using Arguments = std::vector<Argument>;

/// An argument: none, a value, a constant, a list of arguments, a graph or a dictionary.
struct Argument {
  std::variant<std::monostate, ValueName, bool, std::int64_t, double, c10::complex<double>,
               std::string, c10::ScalarType, c10::MemoryFormat, c10::Layout, c10::Device, Arguments,
               SubGraph, OperatorName, std::map<std::string, Argument>>
      value;

  template <class Kind>
  const Kind* as() const {
    return std::get_if<Kind>(&value);
  }
  bool is_none() const { return std::holds_alternative<std::monostate>(value); }
};

struct NamedArgument {
  std::string name;  // "" if the operator has no schema
  Argument argument;
};

/// The place of an operation in the Python program.
struct PythonPlace {
  std::string line;    // "net.py:15 in forward": the innermost one that is not PyTorch's own
  std::string module;  // "block.conv"; "" for the network itself
  std::string type;    // "torch.nn.modules.conv.Conv2d"
};

struct Node {
  std::string name;
  std::string target;  // "torch.ops.aten.conv2d.default"
  std::vector<NamedArgument> inputs;
  Arguments outputs;  // names, None, or lists of them
  PythonPlace place;
};

/// A number of a shape: fixed, or an expression over symbols ("Symbol('s0', ...)").
struct Extent {
  std::int64_t fixed = 0;
  std::string expression = {};
};

struct TensorMeta {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<Extent> sizes, strides;
  Extent offset;
  bool requires_grad = false;
};

struct Graph {
  Arguments inputs, outputs;
  std::vector<Node> nodes;
  std::map<std::string, TensorMeta> tensors;                // of its inputs
  std::map<std::string, std::vector<Extent>> output_sizes;  // of tensors
};

enum class InputKind { user, parameter, buffer, constant, fixed, custom_object, token };

struct InputSpec {
  InputKind kind = InputKind::user;
  std::string name;        // of the value; "" for an input that is None or a constant
  std::string target;      // Python's name of the parameter, buffer or constant
  bool persistent = true;  // of a buffer
  Argument value;          // of an input that is fixed
};

enum class OutputKind { user, loss, buffer, parameter, user_input, token };

struct OutputSpec {
  OutputKind kind = OutputKind::user;
  Argument value;
  std::string target = {};  // what is written to
  bool is_tensor = true;    // else a number or None
};

struct SymbolRange {
  std::int64_t least, most;
};

/// One graph of a file with its signature.
struct Program {
  std::string name;  // "model", "eval"
  std::string torch_version;
  bool is_training_dialect = true;  // false: decomposed (run_decompositions)
  Graph graph;
  std::vector<InputSpec> inputs;
  std::vector<OutputSpec> outputs;
  TreeSpec in_spec, out_spec;
  std::vector<std::string> argument_names;  // of the positional arguments, if known
  std::map<std::string, SymbolRange> ranges;
};

}  // namespace demi::imported
