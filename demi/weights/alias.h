#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <vector>

namespace demi::weights {

/// What autograd knows of a tensor, as far as a copy depends on it.
enum class Kind {
  trained_leaf,  // its own requires_grad is set, which a view made under no_grad does not have
                 // although requires_grad() says so
  plain_leaf,    // outside every graph
  view,          // differentiable, of a base
  other,         // has a history, or a tangent of forward mode, which a copy would lose
};
Kind kind_of(const at::TensorBase& tensor);

/// What the uses of one copy in graphs get: tensors with the copy's data and version counter, and
/// an edge by which gradients arrive at the FP32 leaf. 98 ns against 1069 for an
/// autograd::Function. Holds the leaf.
///
/// Where the leaf's .grad may have 16 bits, one use of the leaf in a graph hands its gradient on in
/// 16 bits, and further ones in FP32 (accumulator.h): sums are never made in 16 bits. Whether a use
/// is the first is read off the reference counts, which also see graphs that were thrown away.
class Aliases {
 public:
  Aliases() = default;
  Aliases(Aliases&&) noexcept = default;
  Aliases& operator=(Aliases&& other) noexcept;
  ~Aliases() { uncount(); }

  bool defined() const { return wide_.defined(); }

  /// For one use. Empty where they were never made, or lead where LibTorch no longer does. From any
  /// thread.
  at::Tensor take(const c10::TensorImpl& leaf) const;

  /// Makes them anew. False where a graph holds an accumulator of LibTorch's: then uses want
  /// alias_of_leaf(). What they held is moved to `dropped`, to be destroyed outside of every lock.
  bool make(const at::Tensor& low, const at::Tensor& leaf, std::vector<at::Tensor>& dropped);

  void move_to(std::vector<at::Tensor>& dropped);

 private:
  using NodePointer = decltype(torch::autograd::Edge::function);
  int references() const;
  void uncount();

  at::Tensor wide_;               // any number of uses
  at::Tensor direct_, by_token_;  // one use each, in 16 bits; empty where other aliases have them
  NodePointer accumulator_, token_;
  bool opened_ = false;  // the leaf took 16-bit gradients
};

/// Aliases that live across graphs hold the leaf's accumulator, which belongs to the stream that
/// was current when it was made: backward would wait for that stream in every later graph, and
/// while another one is being captured it must not. False on devices with streams: there each use
/// gets an alias of its own, and the accumulator dies with its graph, as LibTorch's do.
bool keeps_aliases(const at::TensorBase& leaf);

/// As Aliases::take() for one use, with nothing kept.
at::Tensor alias_of_leaf(const at::Tensor& low, const at::Tensor& leaf);

/// The data of `low`, the copy of view._base(), with sizes, strides and offset of `view`, and
/// (`with_edge`) its gradient edge. Empty where the view has none: it was made under no_grad.
at::Tensor alias_of_view(const at::Tensor& low, const at::Tensor& view, bool with_edge);

}  // namespace demi::weights
