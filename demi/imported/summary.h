#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "demi/core/export.h"

namespace demi::imported {

/// A parameter or buffer of a file.
struct TensorSummary {
  std::string name;                 // Python's: "block.conv.weight"
  c10::ScalarType dtype;            // of its stored values
  std::vector<std::int64_t> sizes;  // sizes, outermost first; empty: one number
  bool is_parameter = true;         // false: a buffer
  bool is_trainable = false;        // gets gradients, as Python's requires_grad said
  std::string same_as;  // the first name of this tensor, if it has several (tied weights)
};

/// A size of an input: one number, or a range.
struct SizeSummary {
  std::string text;  // "3", "s0", "2*s0"
  /// The range, both ends included. Equal: one number.
  std::int64_t least = 0, most = 0;

  /// Whether one size alone is accepted.
  bool is_fixed() const { return least == most; }
  /// Whether there is a greatest size at all.
  bool has_most() const { return most < std::int64_t{1} << 48; }
};

/// An input of forward.
struct InputSummary {
  std::string name;                                // of the argument of Python's forward
  bool is_tensor = true;                           // else a number or another plain value
  c10::ScalarType dtype = c10::ScalarType::Float;  // of a tensor
  std::vector<SizeSummary> sizes;                  // of a tensor, outermost first
};

/// An operation, and where it stands in the Python program.
struct OperationSummary {
  std::string op;                         // "aten::conv2d"
  std::string module;                     // "block.conv"; "" for the network itself
  std::string line;                       // "net.py:15 in forward"
  std::vector<std::string> tensors = {};  // parameters and buffers that it reads, Python's names
};

/// One graph of a file. An input reads "x: Float (s0, 3, 5, 5)"; a size that changes has a symbol.
struct GraphSummary {
  std::string name;  // "model", "eval"
  std::string mode;  // "train", "eval", or "unknown": the only graph, of which nothing says it
  bool is_decomposed =
      false;  // by run_decompositions(): other operations than Python's autocast sees
  std::vector<std::string> inputs;                     // names, in the order of forward
  std::vector<InputSummary> arguments;                 // the same by their parts
  std::size_t outputs = 0;                             // tensors that forward gives
  std::vector<std::string> output_names;               // of a dict; else none
  std::vector<std::vector<SizeSummary>> output_sizes;  // of each tensor, outermost first
  std::vector<OperationSummary> operations;  // in their order, those of graphs within the graph too
  std::map<std::string, std::size_t> operators;  // "aten::conv2d", how often
  /// Batch norms, each with what runs with it as one operator (Fusing): "aten::batch_norm in bn
  /// (net.py:15 in forward), with aten::relu in act (net.py:16 in forward)". Empty, too, for a
  /// graph that cannot be run.
  std::vector<std::string> fusible;
};

/// A summary of a `.pt2` file.
struct FileSummary {
  std::string torch_version;  // that exported it
  /// 16 hexadecimal digits, others for another network: operations, signature, names of weights and
  /// values of constants count; weights, lines, sizes of inputs and the exporting PyTorch do not.
  std::string identity;
  std::vector<GraphSummary> graphs;    // one for each mode that was exported
  std::vector<TensorSummary> tensors;  // in the order of the names
};

/// Summarises a .pt2 file of torch.export.save. Reads names and graphs, not the weights. Throws
/// DataError, which explains how to export, for a file that is damaged or of another kind.
DEMI_API FileSummary summarize(const std::filesystem::path& file);

}  // namespace demi::imported
