#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

// What autograd saves for backward passes through hooks. LibTorch's own stack of default hooks
// holds Python objects; from C++ the engine gives them, so demi's stands in front of the one that
// is there.
namespace demi::recomputation {

using torch::autograd::SavedVariableHooks;

/// Gives the hooks of the tensors that this thread saves while it lives; the innermost one does.
class SavedTensorScope {
 public:
  SavedTensorScope();
  virtual ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

  virtual std::unique_ptr<SavedVariableHooks> hooks() = 0;

  /// The innermost one of this thread, or null.
  static SavedTensorScope* innermost();

 private:
  SavedTensorScope* outer_;
};

}  // namespace demi::recomputation
