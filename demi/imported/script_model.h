#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <torch/csrc/jit/api/module.h>

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "demi/imported/frozen_parts.h"
#include "demi/imported/model_state.h"

namespace demi::imported {

/// A network of TorchScript. Its operations are run by LibTorch's interpreter, one by one
/// (ScriptSettings).
class ScriptModel {
 public:
  /// Reads and checks the file, in train mode. Throws DataError for a damaged one, and UsageError,
  /// with the Python line, for a network with regions of autocast inside, which only LibTorch's own
  /// pass would honour.
  explicit ScriptModel(const std::filesystem::path& file);

  /// Calls the network as ImportedModel::call does.
  c10::IValue call(const std::vector<c10::IValue>& arguments,
                   const std::map<std::string, c10::IValue>& keywords);

  void train(bool on);
  /// Sets the modules within these parts to eval mode, and the others to the network's mode, which
  /// is_training is. Null: no part.
  void freeze(const FrozenParts* parts, bool is_training);

  /// Another network with this code, and tensors of its own; tied ones are tied, too.
  ScriptModel copy(const std::optional<c10::Device>& device) const;

  /// The network's own tensors under Python's names, not copies.
  std::vector<StateTensor> state() const;
  /// Modules of torch.nn that are normalisations, by their types.
  std::set<std::string> normalisations() const;
  std::vector<std::string> notes() const;

  /// Whether forward may return several tensors, of which `output` names one by key or number.
  bool has_output(const std::string& output) const;
  std::string outputs_text() const;

 private:
  explicit ScriptModel(torch::jit::Module module);

  torch::jit::Module module_;
  bool has_frozen_ = false;
};

}  // namespace demi::imported
