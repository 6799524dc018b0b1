#include "demi/weights/alias.h"

#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>

#include "demi/weights/accumulator.h"
#include "demi/weights/streams.h"

namespace demi::weights {
namespace {

namespace autograd = torch::autograd;

autograd::AutogradMeta* meta_of(const c10::TensorImpl& tensor) {
  return static_cast<autograd::AutogradMeta*>(tensor.autograd_meta());
}

at::Tensor share(const at::Tensor& low) {
  auto* impl = low.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(),
                                                  /*allow_tensor_metadata_change=*/true));
}

at::Tensor with_edge_to(const at::Tensor& low, NodePointer node, std::uint32_t input) {
  at::Tensor alias = share(low);
  autograd::impl::set_gradient_edge(alias, autograd::Edge(std::move(node), input));
  return alias;
}

// An edge to LibTorch's own accumulator, whose one input must not add up in 16 bits.
autograd::Edge widening_edge(NodePointer libtorchs, const autograd::AutogradMeta& meta) {
  if (meta.allow_grad_dtype_mismatch_)
    const_cast<autograd::InputMetadata&>(libtorchs->input_metadata(0)).set_grad_dtype(at::kFloat);
  return {std::move(libtorchs), 0};
}

// The leaf's accumulator, made if there is none. LibTorch's own stays while a graph holds it, since
// all gradients of a leaf have to be summed in one; `held_here` are the references to it that do
// not count.
NodePointer accumulator_of(const at::Tensor& leaf, c10::ScalarType dtype,
                           const NodePointer& held_here) {
  auto& meta = *meta_of(*leaf.unsafeGetTensorImpl());
  const bool opened = takes_16_bit(meta, dtype);
  NodePointer known;  // destroyed after the lock
  const std::lock_guard lock(meta.mutex_);
  known = meta.grad_accumulator_.lock();
  constexpr std::size_t kHeldHere = 3;  // accumulator_, the edge of wide_ and `known`
  const bool replaceable =
      opened && known && known == held_here && known.use_count() == kHeldHere && !as_ours(known);
  // Another shape: the leaf's data was replaced (set_data).
  if (known && known->input_metadata(0).is_same_shape(leaf) && !replaceable) return known;
  NodePointer made =
      opened ? make_node<Accumulator>(leaf) : make_node<autograd::AccumulateGrad>(leaf);
  meta.grad_accumulator_ = WeakNodePointer(made);
  return made;
}

// The leaf's accumulator as one of ours; none if more than `view` leads to one of LibTorch's.
NodePointer opened_accumulator(const at::TensorBase& leaf, const autograd::Edge& of_view) {
  if (as_ours(of_view.function)) return of_view.function;
  auto& meta = *meta_of(*leaf.unsafeGetTensorImpl());
  const std::lock_guard lock(meta.mutex_);
  const NodePointer known = meta.grad_accumulator_.lock();
  constexpr std::size_t kHeldHere = 2;  // of_view and `known`
  if (known != of_view.function || known.use_count() != kHeldHere) return {};
  NodePointer made = make_node<Accumulator>(at::Tensor(leaf));
  meta.grad_accumulator_ = WeakNodePointer(made);
  return made;
}

// Whether this backward of a view only moves elements, or puts them among zeros. The backward of
// unfold, expand and as_strided may add up several of them, and a program's own function may do
// anything: these get FP32.
bool passes_elements_on(const Node& of_view) {
  static const std::unordered_set<std::string> known{
      "AliasBackward0",     "DiagonalBackward0", "PermuteBackward0",   "ReshapeAliasBackward0",
      "SelectBackward0",    "SliceBackward0",    "SplitBackward0",     "SplitWithSizesBackward0",
      "SqueezeBackward0",   "SqueezeBackward1",  "SqueezeBackward2",   "TBackward0",
      "TransposeBackward0", "UnbindBackward0",   "UnsqueezeBackward0", "ViewBackward0"};
  return known.contains(of_view.name());
}

}  // namespace

Kind kind_of(const at::TensorBase& tensor) {
  const auto* meta = meta_of(*tensor.unsafeGetTensorImpl());
  if (!meta) return Kind::plain_leaf;
  if (meta->fw_grad_) return Kind::other;
  // requires_grad_() of a tensor within a graph sets the flag, too, and means nothing.
  if (meta->requires_grad_ && !meta->grad_fn_) return Kind::trained_leaf;
  if (meta->is_view_ && tensor.is_view()) return Kind::view;
  const bool plain = !meta->grad_fn_ && !meta->is_view_;
  return plain ? Kind::plain_leaf : Kind::other;
}

Aliases& Aliases::operator=(Aliases&& other) noexcept {
  std::swap(wide_, other.wide_);
  std::swap(direct_, other.direct_);
  std::swap(by_token_, other.by_token_);
  std::swap(accumulator_, other.accumulator_);
  std::swap(token_, other.token_);
  std::swap(opened_, other.opened_);
  return *this;
}

at::Tensor Aliases::take(const c10::TensorImpl& leaf) const {
  if (!wide_.defined()) return {};
  const auto& meta = *meta_of(leaf);
  if (target_of(meta.grad_accumulator_) != accumulator_.get() ||
      takes_16_bit(meta, wide_.scalar_type()) != opened_)
    return {};
  if (!direct_.defined()) return wide_;
  // An op holds the tensor until it has taken the edge, and the graph holds the edge from then on:
  // with no other holder of either, no use is there that this one's gradient could be added to.
  at::Tensor mine = direct_;
  const auto& accumulator = static_cast<const Accumulator&>(*accumulator_);
  if (mine.use_count() == 2 &&
      static_cast<std::int64_t>(accumulator_.use_count()) == accumulator.kept)
    return mine;
  mine = by_token_;
  if (mine.use_count() == 2 && token_.use_count() == 2) return mine;
  return wide_;
}

bool Aliases::make(const at::Tensor& low, const at::Tensor& leaf,
                   std::vector<at::Tensor>& dropped) {
  const bool opened = takes_16_bit(*meta_of(*leaf.unsafeGetTensorImpl()), low.scalar_type());
  NodePointer accumulator = accumulator_of(leaf, low.scalar_type(), accumulator_);
  Accumulator* ours = as_ours(accumulator);
  move_to(dropped);
  if (opened && !ours) return false;
  opened_ = opened;
  wide_ = with_edge_to(low, accumulator, ours ? +Accumulator::kWide : 0u);
  if (opened && !ours->is_claimed.exchange(true)) {
    direct_ = with_edge_to(low, accumulator, Accumulator::kDirect);
    token_ = ours->token(accumulator);
    by_token_ = with_edge_to(low, token_, 0);
  }
  if (ours) ours->kept += references();
  accumulator_ = std::move(accumulator);
  return true;
}

// References to the accumulator: accumulator_, the edges of wide_ and direct_, the token's.
int Aliases::references() const { return direct_.defined() ? 4 : 2; }

void Aliases::uncount() {
  Accumulator* ours = accumulator_ ? as_ours(accumulator_) : nullptr;
  if (!ours) return;
  ours->kept -= references();
  if (direct_.defined()) ours->is_claimed = false;
}

void Aliases::move_to(std::vector<at::Tensor>& dropped) {
  uncount();
  accumulator_.reset();  // never the last holders: the tensors are
  token_.reset();
  for (at::Tensor* alias : {&wide_, &direct_, &by_token_})
    if (alias->defined()) dropped.push_back(std::move(*alias));
}

bool keeps_aliases(const at::TensorBase& leaf) {
  return leaf.is_cpu() && !emulated_streams.load(std::memory_order_relaxed);
}

at::Tensor alias_of_leaf(const at::Tensor& low, const at::Tensor& leaf) {
  const NodePointer accumulator = accumulator_of(leaf, low.scalar_type(), {});
  const auto& meta = *meta_of(*leaf.unsafeGetTensorImpl());
  Accumulator* ours = as_ours(accumulator);
  autograd::Edge edge;
  if (!ours)
    edge = widening_edge(accumulator, meta);
  else if (takes_16_bit(meta, low.scalar_type()))
    edge = ours->edge_of_one_use(accumulator);
  else
    edge = {accumulator, Accumulator::kWide};
  return with_edge_to(low, std::move(edge.function), edge.input_nr);
}

ViewEdge edge_of_view(const at::Tensor& view, c10::ScalarType dtype) {
  const at::TensorBase& leaf = view._base();
  ViewEdge result{autograd::impl::gradient_edge(view)};
  autograd::Edge& edge = result.edge;
  if (!edge.is_valid() || !takes_16_bit(*meta_of(*leaf.unsafeGetTensorImpl()), dtype))
    return result;
  constexpr std::size_t kHeldHere = 2;  // the view's and `edge`
  const bool is_first_use = edge.function.use_count() == kHeldHere;
  const auto& next = edge.function->next_edges();
  if (!is_first_use || next.size() != 1 || !passes_elements_on(*edge.function)) return result;
  NodePointer accumulator = opened_accumulator(leaf, next[0]);
  if (!accumulator) return result;
  result.leads_to_ours = true;
  const auto input = as_ours(accumulator)->claim_for_view(edge.function);
  // Both are accumulators of the leaf, so the node's place in the graph stays what it was.
  const_cast<autograd::Edge&>(next[0]) = autograd::Edge(std::move(accumulator), input);
  if (input != Accumulator::kLibTorch) edge = autograd::Edge(make_node<Handover>(edge, view), 0);
  return result;
}

at::Tensor alias_of_view(const at::Tensor& low, const at::Tensor& view, autograd::Edge edge) {
  at::Tensor alias = share(low);
  alias.unsafeGetTensorImpl()->set_sizes_and_strides(
      view.sizes(), view.strides(), view.storage_offset() - view._base().storage_offset());
  if (edge.is_valid()) autograd::impl::set_gradient_edge(alias, std::move(edge));
  return alias;
}

}  // namespace demi::weights
