#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <utility>
#include <vector>

namespace demi::tensor {

/// Keeps the results of costly ops of this thread, or returns those that it has in place of
/// computing them: recompute() with Keep::products sets it. Called below autograd, so the op's
/// place in the graph and the tensors that it saves are the same as without.
class KeptResults {
 public:
  using Tensors = std::vector<at::Tensor>;
  virtual ~KeptResults() = default;

  /// The op's results; compute() gives them where none are kept.
  virtual Tensors results(const char* op, c10::function_ref<Tensors()> compute) = 0;

  [[gnu::tls_model(
      "initial-exec")]] static inline thread_local constinit KeptResults* of_this_thread = nullptr;
};

/// Sets it until the end of the scope.
class KeptResultsScope {
 public:
  explicit KeptResultsScope(KeptResults* kept)
      : outer_(std::exchange(KeptResults::of_this_thread, kept)) {}
  ~KeptResultsScope() { KeptResults::of_this_thread = outer_; }
  KeptResultsScope(const KeptResultsScope&) = delete;
  KeptResultsScope& operator=(const KeptResultsScope&) = delete;

 private:
  KeptResults* outer_;
};

/// The result of an op of ours: compute() returns a tensor.
template <class Compute>
at::Tensor kept(const char* op, const Compute& compute) {
  KeptResults* here = KeptResults::of_this_thread;
  if (!here) return compute();
  return here->results(op, [&] { return KeptResults::Tensors{compute()}; })[0];
}

}  // namespace demi::tensor
