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
  std::string name;  // Python's: "block.conv.weight"
  c10::ScalarType dtype;
  std::vector<std::int64_t> sizes;
  bool is_parameter = true;
  bool is_trainable = false;
  std::string same_as;  // the first name of this tensor, if it has several (tied weights)
};

/// One graph of a file. An input reads "x: Float (s0, 3, 5, 5)"; a size that changes has a symbol.
struct GraphSummary {
  std::string name;  // "model", "eval"
  std::string mode;  // "train", "eval", or "either": no operation depends on it
  bool is_decomposed =
      false;  // by run_decompositions(): other operations than Python's autocast sees
  std::vector<std::string> inputs;
  std::size_t outputs = 0;
  std::map<std::string, std::size_t> operators;  // "aten::conv2d", how often
};

struct FileSummary {
  std::string torch_version;  // that exported it
  std::vector<GraphSummary> graphs;
  std::vector<TensorSummary> tensors;  // in the order of the names
};

/// What a .pt2 file of torch.export.save holds. Reads names and graphs, not the weights. Throws
/// DataError for a file that is damaged or of another kind, and says how to export.
DEMI_API FileSummary summarize(const std::filesystem::path& file);

}  // namespace demi::imported
