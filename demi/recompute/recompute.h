#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "demi/core/export.h"

namespace demi {

/// The results that a recomputed function keeps, beside its inputs.
enum class Keep {
  /// Inputs alone: the second run makes everything.
  nothing,
  /// The results of products of matrices (mm, addmm, linear), convolutions and attention, if not
  /// written to: the second run makes the rest, which costs less. Not of batched products (bmm).
  products,
};

/// Options of a recomputed call.
struct RecomputeOptions {
  Keep keep = Keep::nothing;  // see Keep
  /// Whether the function draws from LibTorch's default generators (dropout): the state of the
  /// CPU's generator and of those of the inputs' devices is restored while it runs again. false:
  /// nothing is restored.
  bool preserve_random_state = true;
  /// Whether the second run ends, by an exception of no type, as soon as backward has what it
  /// needs. Has no effect if the function is noexcept itself; set it to false for one that calls
  /// through a noexcept function.
  bool early_stop = true;
};

namespace recomputation {

/// The inputs and the results of a call.
using Tensors = std::vector<at::Tensor>;
/// A call on tensors.
using Function = std::function<Tensors(const Tensors&)>;

/// Runs recompute()'s call, of any type, as a function of tensors.
DEMI_API Tensors run(Function function, const Tensors& inputs, const RecomputeOptions& options);

/// The options, without early_stop if the function is noexcept: nothing is thrown through it.
inline RecomputeOptions fit_for(bool is_noexcept, RecomputeOptions options) {
  options.early_stop = options.early_stop && !is_noexcept;
  return options;
}

}  // namespace recomputation

/// function(inputs), without keeping what backward needs of it (activation checkpointing): backward
/// runs the function a second time to make it anew.
///
///     x = demi::recompute([&](const at::Tensor& x) { return block->forward(x); }, x);
///     auto outputs = demi::recompute(function, {x, mask});  // of a std::vector<at::Tensor>
///
/// `function` takes a tensor or a std::vector<at::Tensor>, as `inputs` is, and returns either; its
/// result is returned. The gradients are bit for bit those of function(inputs), also of weights
/// that the function uses without being given them. Both runs have the same autocast state (dtype,
/// policy, cache, FP32 parts), generators and inputs, and find the same numbers in tensors from
/// outside that they write to (running statistics, counters, codebooks); what the second one writes
/// there is put back. Calls nest, and may be in a region, under accumulation, in
/// torch::autograd::grad, with retain_graph and create_graph.
///
/// The inputs are kept, and so is the function with what it captures by value; what it captures by
/// reference must live until backward. Give it activations as inputs, and capture modules and
/// weights alone. It must do the same both times. Under NoGradGuard the function is called, and
/// nothing else.
///
/// Throws UsageError if the function writes to an input. Backward throws UsageError if the second
/// run saves other tensors than the first one, and LibTorch's error, as without recompute, if an
/// input, a weight or another tensor that the function reads was written to in between by something
/// else. Does not synchronise. In a graph that is captured on CUDA preserve_random_state
/// must be false.
template <class Call>
auto recompute(Call&& function, const std::vector<at::Tensor>& inputs,
               const RecomputeOptions& options = {}) {
  using recomputation::Tensors;
  using Result = std::decay_t<std::invoke_result_t<Call&, const Tensors&>>;
  const auto fit =
      recomputation::fit_for(std::is_nothrow_invocable_v<Call&, const Tensors&>, options);
  if constexpr (std::is_same_v<Result, at::Tensor>)
    return recomputation::run([call = std::forward<Call>(function)](
                                  const Tensors& x) mutable { return Tensors{call(x)}; },
                              inputs, fit)[0];
  else
    return recomputation::run(std::forward<Call>(function), inputs, fit);
}

/// Recomputes a function of one input.
template <class Call>
auto recompute(Call&& function, const at::Tensor& input, const RecomputeOptions& options = {}) {
  return recompute(
      [call = std::forward<Call>(function)](const recomputation::Tensors& x) mutable {
        return call(x[0]);
      },
      recomputation::Tensors{input},
      recomputation::fit_for(std::is_nothrow_invocable_v<Call&, const at::Tensor&>, options));
}

/// Whether this thread runs a function for the second time.
DEMI_API bool is_recomputing();

}  // namespace demi
