#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

// Hooks for the tensors that autograd saves for backward passes. LibTorch's own stack of default
// hooks holds Python objects, while in C++ the engine supplies the hooks: demi's engine stands in
// front of the present one, and supplies those of demi's scopes.
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
