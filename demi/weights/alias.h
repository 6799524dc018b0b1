#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <vector>

namespace demi::weights {

/// The autograd kinds of tensors that copies distinguish.
enum class Kind {
  /// A leaf whose own requires_grad is set. That of a view made under no_grad is not, although
  /// requires_grad() returns true.
  trained_leaf,
  /// Outside every graph.
  plain_leaf,
  /// A differentiable view of a base.
  view,
  /// A tensor with a history, or with a tangent of forward mode, which a copy would lose.
  other,
};
Kind kind_of(const at::TensorBase& tensor);

/// The tensors that represent one copy in graphs: they share the copy's data and version counter,
/// and have an edge that leads gradients to the FP32 leaf. Making one takes 98 ns, an
/// autograd::Function 1069. Holds the leaf.
///
/// If the leaf's .grad may have 16 bits, one use of the leaf in a graph passes its gradient on in
/// 16 bits, and further uses in FP32 (accumulator.h), so nothing is added up in 16 bits. The
/// reference counts show whether a use is the first; they also notice graphs that were discarded.
class Aliases {
 public:
  Aliases() = default;
  Aliases(Aliases&&) noexcept = default;
  Aliases& operator=(Aliases&& other) noexcept;
  ~Aliases() { uncount(); }

  bool defined() const { return wide_.defined(); }

  /// The tensor for one use. Empty if the aliases were never made, or if they lead to an
  /// accumulator that LibTorch no longer uses. Any thread.
  at::Tensor take(const c10::TensorImpl& leaf) const;

  /// Makes the aliases again. False if a graph holds an accumulator of LibTorch's own: call
  /// alias_of_leaf() for each use then. The tensors held before are moved to `dropped`, to be
  /// destroyed outside of every lock.
  bool make(const at::Tensor& low, const at::Tensor& leaf, std::vector<at::Tensor>& dropped);

  void move_to(std::vector<at::Tensor>& dropped);

 private:
  using NodePointer = decltype(torch::autograd::Edge::function);
  int references() const;
  void uncount();

  at::Tensor wide_;               // for any number of uses
  at::Tensor direct_, by_token_;  // for one use each, in 16 bits; empty if other aliases have them
  NodePointer accumulator_, token_;
  bool opened_ = false;  // the leaf accepted 16-bit gradients when they were made
};

/// Whether aliases live across graphs. They hold the leaf's accumulator, which belongs to the
/// stream that was current when it was made: backward would wait for that stream in every later
/// graph, which is forbidden while another stream is captured. So this is false on devices with
/// streams: each use gets an alias of its own, and the accumulator dies with its graph, as
/// LibTorch's do.
bool keeps_aliases(const at::TensorBase& leaf);

/// A tensor for one use, as Aliases::take() returns it, with nothing kept.
at::Tensor alias_of_leaf(const at::Tensor& low, const at::Tensor& leaf);

/// The edge for the gradient of one use of a view.
struct ViewEdge {
  torch::autograd::Edge edge;  // not valid: the view was made under no_grad
  /// The leaf's accumulator is one of ours, which Aliases::make() then keeps.
  bool leads_to_ours = false;
};

/// The edge for one use of a view of a trained leaf. The gradient passes on in 16 bits if the leaf
/// takes such, the view has each element of the leaf once at most, so that nothing is added up on
/// the way, this is its first use in a graph, and one of the accumulator's inputs for views is
/// free; else in FP32. torch::nn::Linear multiplies by such a view.
ViewEdge edge_of_view(const at::Tensor& view, c10::ScalarType dtype);

/// The data of `low`, the copy of view._base(), with sizes, strides and offset of `view`, and with
/// the edge if that is valid.
at::Tensor alias_of_view(const at::Tensor& low, const at::Tensor& view, torch::autograd::Edge edge);

}  // namespace demi::weights
