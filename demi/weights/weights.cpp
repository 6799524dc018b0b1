#include "demi/weights/weights.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>

#include "demi/core/error.h"
#include "demi/core/nearest.h"
#include "demi/tensor/version.h"
#include "demi/weights/alias.h"
#include "demi/weights/cache.h"
#include "demi/weights/cast_turns.h"

namespace demi::weights {
namespace {

constinit std::atomic<bool> step_is_captured = false;

Mode mode_of_environment() {
  const char* word = std::getenv("DEMI_WEIGHT_CACHE");
  if (!word || !*word) return hook_is_free() && hook_works() ? Mode::keep : Mode::region;
  const std::vector<std::string> known{"keep", "region", "off"};
  if (word == known[0]) return hook_works() ? Mode::keep : Mode::region;
  if (word == known[1]) return Mode::region;
  if (word == known[2]) return Mode::off;
  refuse({.where = "weights.mode",
          .what = "DEMI_WEIGHT_CACHE has a value that is not known",
          .seen = word,
          .advice = did_you_mean(word, known)});
}

std::atomic<Mode>& current_mode() {
  static std::atomic<Mode> value(mode_of_environment());
  return value;
}

// The copy as the op gets it, if it is valid. Empty if there is no valid copy, if it has no alias
// yet and one is wanted, or if the current stream is not ordered behind its cast yet.
at::Tensor valid_view(const LowCopy* copy, const c10::TensorImpl& leaf, bool with_edge,
                      const CurrentStream& current) {
  if (!copy || !is_current(*copy, leaf) || !copy->ready.includes(current)) return {};
  return with_edge ? copy->aliases.take(leaf) : copy->low;
}

// Completes a valid copy, and returns its data. What it replaces is moved to `dropped`, to be
// destroyed outside of the lock. The caller holds the exclusive lock.
at::Tensor complete(LowCopy* copy, const at::Tensor& leaf, bool with_edge,
                    const CurrentStream& current, std::vector<at::Tensor>& dropped) {
  if (!copy || !is_current(*copy, *leaf.unsafeGetTensorImpl())) return {};
  copy->ready.include(current, copy->low);
  if (with_edge && !copy->aliases.take(*leaf.unsafeGetTensorImpl()).defined()) {
    const c10::InferenceMode no_inference(false);
    copy->aliases.make(copy->low, leaf, dropped);
  }
  return copy->low;
}

// False: no copy yet. A batch is often used once, and dies long before the region ends; so is a
// frozen weight in a region around one forward. Takes the lock.
bool note_in_region(Region& here, const at::Tensor& leaf, c10::ScalarType dtype) {
  RegionEntry& entry = here.entry(leaf);
  const bool first = !std::exchange(entry.used, true);
  if (first && !leaf.requires_grad()) return false;
  if (!find(entry.copies, dtype))
    here.make_room(leaf.numel() * static_cast<std::int64_t>(c10::elementSize(dtype)));
  return true;
}

// The caller holds the shared lock.
LowCopy* search(Region& here, const c10::TensorImpl* leaf, c10::ScalarType dtype, bool keeps) {
  const std::uint64_t generation = owned_generation + here.generation;
  if (LowCopy* known = here.memo.find(leaf, dtype, generation)) return known;
  const auto look_in = [&](auto& table) -> LowCopy* {
    const auto found = table.find(leaf);
    return found == table.end() ? nullptr : find(found->second.copies, dtype);
  };
  const bool is_own = keeps && owned().contains(leaf);
  LowCopy* copy = is_own ? look_in(owned()) : look_in(here.entries);
  if (copy) here.memo.note(leaf, copy, generation);
  return copy;
}

// The copies of this leaf; null if they are not kept any more. Under the lock.
Copies* copies_of(Region& here, const c10::TensorImpl* leaf, bool is_own) {
  const auto look_in = [&](auto& table) {
    const auto found = table.find(leaf);
    return found == table.end() ? nullptr : &found->second.copies;
  };
  return is_own ? look_in(owned()) : look_in(here.entries);
}

std::uint64_t& generation_of(Region& here, bool is_own) {
  return is_own ? owned_generation : here.generation;
}

// Announces a copy, in `made`, if there may be one; else moves a stale one to `gone`. Returns the
// memory for the copy. The caller holds the exclusive lock.
at::Tensor announce(Region& here, Copies& copies, const at::Tensor& leaf, c10::ScalarType dtype,
                    bool is_own, UnlistedCopies& made, UnlistedCopies& gone) {
  LowCopy* stale = find(copies, dtype);
  const auto owner = owned().find(leaf.unsafeGetTensorImpl());
  std::optional<at::Tensor> memory;
  if (owner != owned().end()) memory = memory_for(owner->second.captured, leaf, dtype);
  std::optional<LowCopy> copy;
  if (!memory || (memory->defined() && is_own))
    copy = announce_copy(leaf, dtype, uses_hooks(), stale);
  if (copy) {
    made.copies.push_back(std::move(*copy));
  } else if (stale) {
    gone.copies.push_back(std::move(*stale));
    copies.erase(copies.begin() + (stale - copies.data()));
    ++generation_of(here, is_own);
  }
  return memory.value_or(at::Tensor());
}

// Puts the copy into the place of the stale one, which it leaves in `made`. Exclusive lock.
LowCopy* put(Region& here, Copies& copies, UnlistedCopies& made, bool is_own) {
  LowCopy& copy = made.copies.front();
  if (LowCopy* stale = find(copies, copy.dtype)) {
    std::swap(*stale, copy);
    return stale;
  }
  ++generation_of(here, is_own);
  copies.push_back(std::move(copy));
  made.copies.clear();
  return &copies.back();
}

// Two threads that want one copy at once both cast, and one of the two casts is kept: waiting for
// the other one's cast would be waiting for any observer of it. Threads with CastTurns wait. Gives
// the data; aliases are made where they can be.
at::Tensor cast_into_cache(Region& here, const at::Tensor& leaf, c10::ScalarType dtype,
                           bool with_edge, bool is_own, const CurrentStream& current,
                           bool captured) {
  const c10::TensorImpl* key = leaf.unsafeGetTensorImpl();
  if (!is_own && !note_in_region(here, leaf, dtype)) return {};
  const Turn turn;
  UnlistedCopies made, gone;
  std::vector<at::Tensor> dropped;
  at::Tensor memory;
  {
    const std::unique_lock lock(cache_mutex());
    Copies* copies = copies_of(here, key, is_own);
    if (!copies) return {};
    LowCopy* known = find(*copies, dtype);
    if (captured && !(known && known->ready.includes(current))) return {};
    if (auto low = complete(known, leaf, with_edge, current, dropped); low.defined() || captured)
      return low;
    memory = announce(here, *copies, leaf, dtype, is_own, made, gone);
  }
  if (made.copies.empty() || !fill(made.copies.front(), leaf, memory)) return {};
  const std::unique_lock lock(cache_mutex());
  Copies* copies = copies_of(here, key, is_own);
  if (!copies) return {};
  if (auto low = complete(find(*copies, dtype), leaf, with_edge, current, dropped); low.defined())
    return low;
  LowCopy* copy = put(here, *copies, made, is_own);
  for (auto& stale : made.copies) stale.aliases.move_to(dropped);
  complete(copy, leaf, with_edge, current, dropped);
  return copy->low;  // written during the cast: as of the cast
}

// The copy of this leaf, made now if there is none; empty if there can be none. What a stream
// records while it is captured is no copy: a replay fills it.
at::Tensor cached_copy(const at::Tensor& leaf, c10::ScalarType dtype, bool with_edge) {
  const Mode how = current_mode().load(std::memory_order_relaxed);
  if (how == Mode::off) return {};
  const CurrentStream current(leaf);
  const bool captured = current && current.is_captured();
  if (captured && !step_is_captured.load(std::memory_order_relaxed)) return {};
  const c10::TensorImpl* key = leaf.unsafeGetTensorImpl();
  Region& here = region_in_force();
  bool is_own = false;
  const auto find_valid = [&] {
    const LowCopy* copy = search(here, key, dtype, how == Mode::keep);
    return valid_view(copy, *key, with_edge, current);
  };
  {
    const Reading lock;
    if (auto low = find_valid(); low.defined()) return low;
    is_own = how == Mode::keep && owned().contains(key);
  }
  if (!is_own && here.depth == 0) return {};
  const at::Tensor low = cast_into_cache(here, leaf, dtype, with_edge, is_own, current, captured);
  if (!with_edge || !low.defined()) return low;
  {
    const Reading lock;  // replaced copies are gone by now, and count as no use
    if (auto alias = find_valid(); alias.defined()) return alias;
  }
  const c10::InferenceMode no_inference(false);
  return alias_of_leaf(low, leaf);
}

// A module holds each parameter twice (its member and its dictionary); an activation or a batch has
// one holder.
constexpr int kHandlesOfAParameter = 2;

bool is_held_by_others(const at::TensorBase& tensor, int handles) {
  return static_cast<int>(tensor.use_count()) >= kHandlesOfAParameter + handles;
}

// Tensors that cannot have a copy. Nested tensors are strided by their layout, but have no strides;
// Python's dispatch does not show what an op does.
constexpr c10::DispatchKeySet kNotPlain({c10::DispatchKey::NestedTensor, c10::DispatchKey::Python,
                                         c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});

bool can_have_copy(const at::TensorBase& tensor) {
  return tensor.scalar_type() == at::kFloat && tensor.layout() == at::kStrided &&
         tensor.has_storage() && !tensor.key_set().has_any(kNotPlain);
}

// Whether two elements may share memory: windows, rows upon rows, expanded dimensions. Kernels of
// LibTorch's do not all read such a tensor right, and a cast never makes one.
bool may_overlap_itself(const at::TensorBase& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return false;
  c10::SmallVector<std::pair<std::int64_t, std::int64_t>, 5> dimensions;  // stride, size
  for (std::int64_t d = 0; d < tensor.dim(); ++d)
    if (tensor.size(d) > 1) dimensions.emplace_back(tensor.stride(d), tensor.size(d));
  std::sort(dimensions.begin(), dimensions.end());
  std::int64_t span = 1;  // places from the first element to the last
  for (const auto& [stride, size] : dimensions) {
    if (stride < span) return true;
    span += stride * (size - 1);
  }
  return false;
}

// The whole base is cast for a view of it: of a frozen one only if the view shows as much.
at::Tensor copy_of_view(const at::Tensor& view, c10::ScalarType dtype) {
  const at::TensorBase& base = view._base();
  if (!can_have_copy(base) || may_overlap_itself(view) ||
      !tensor::lies_within(*view.unsafeGetTensorImpl(), *base.unsafeGetTensorImpl()))
    return {};
  const Kind kind = kind_of(base);
  const bool trained = kind == Kind::trained_leaf;
  const bool frozen = kind == Kind::plain_leaf && view.numel() >= base.numel() &&
                      is_held_by_others(base, /*handles=*/1);
  if (!trained && !frozen) return {};
  const bool with_edge = trained && at::GradMode::is_enabled() && view.requires_grad();
  ViewEdge edge;
  if (with_edge) edge = edge_of_view(view, dtype);
  if (with_edge && !edge.edge.is_valid()) return {};
  const bool keeps_accumulator = edge.leads_to_ours && keeps_aliases(base);
  const at::Tensor low = cached_copy(at::Tensor(base), dtype, keeps_accumulator);
  if (!low.defined()) return {};
  const c10::InferenceMode no_inference(false);
  return alias_of_view(low, view, std::move(edge.edge));
}

at::Tensor copy_of_trained(const at::Tensor& leaf, c10::ScalarType dtype) {
  const bool with_edge = c10::AutogradState::get_tls_state().get_grad_mode();
  if (!with_edge || keeps_aliases(leaf)) return cached_copy(leaf, dtype, with_edge);
  const at::Tensor low = cached_copy(leaf, dtype, false);
  if (!low.defined()) return {};
  const c10::InferenceMode no_inference(false);
  return alias_of_leaf(low, leaf);
}

at::Tensor copy_of(const at::Tensor& tensor, c10::ScalarType dtype, int handles) {
  switch (kind_of(tensor)) {
    case Kind::trained_leaf:
      return copy_of_trained(tensor, dtype);
    case Kind::plain_leaf:
      return is_held_by_others(tensor, handles) ? cached_copy(tensor, dtype, false) : at::Tensor();
    case Kind::view:
      return copy_of_view(tensor, dtype);
    case Kind::other:
      break;
  }
  return {};
}

void drop_owned_copies() {
  std::vector<LowCopy> dropped;
  std::vector<DerivedTensors> derived;
  {
    const std::unique_lock lock(cache_mutex());
    ++owned_generation;
    for (auto& [leaf, entry] : owned()) {
      std::move(entry.copies.begin(), entry.copies.end(), std::back_inserter(dropped));
      entry.copies.clear();
      std::move(entry.derived.begin(), entry.derived.end(), std::back_inserter(derived));
      entry.derived.clear();
    }
  }
  discard(std::move(dropped));
  discard(std::move(derived));
}

}  // namespace

Mode mode() { return current_mode(); }

void set_mode(Mode how) {
  drop();
  current_mode() = how == Mode::keep && !hook_works() ? Mode::region : how;
}

void own(const at::Tensor& parameter) {
  const std::unique_lock lock(cache_mutex());
  ++owned_generation;
  auto& entry = owned()[parameter.unsafeGetTensorImpl()];
  entry.parameter = parameter;
  ++entry.owners;
}

void disown(const at::Tensor& parameter) {
  OwnedParameter last;
  {
    const std::unique_lock lock(cache_mutex());
    auto& table = owned();
    const auto found = table.find(parameter.unsafeGetTensorImpl());
    if (found == table.end() || --found->second.owners > 0) return;
    ++owned_generation;
    last = std::move(found->second);
    table.erase(found);
  }
  discard(std::move(last.copies));
  discard(std::move(last.derived));
}

bool is_owned(const at::Tensor& parameter) {
  const Reading lock;
  return owned().contains(parameter.unsafeGetTensorImpl());
}

void mark_dirty(const at::Tensor& parameter) {
  const std::unique_lock lock(cache_mutex());
  if (uses_hooks())
    StorageMark::invalidate(*parameter.storage().unsafeGetStorageImpl());
  else if (!parameter.is_inference())
    parameter.unsafeGetTensorImpl()->bump_version();
}

Stats stats() {
  const auto& all = counters();
  return {.casts = all.casts, .copies = all.copies, .bytes = all.bytes};
}

void reset_stats() { counters().casts = 0; }

void set_capacity(std::int64_t bytes) { counters().capacity = bytes; }

void drop() {
  drop_owned_copies();
  region().clear();
}

std::vector<at::Tensor> copies_of(const at::Tensor& parameter) {
  std::vector<at::Tensor> all;
  const auto add = [&](const auto& table) {
    const auto found = table.find(parameter.unsafeGetTensorImpl());
    if (found == table.end()) return;
    for (const LowCopy& copy : found->second.copies) all.push_back(copy.low);
  };
  const Reading lock;
  add(owned());
  add(region_in_force().entries);
  return all;
}

void set_captures_step(bool captures) { step_is_captured = captures; }
bool captures_step() { return step_is_captured; }

at::Tensor low_precision(const at::Tensor& tensor, c10::ScalarType dtype, int handles) {
  if (tensor.scalar_type() == dtype) return tensor;
  if (can_have_copy(tensor))
    if (auto low = copy_of(tensor, dtype, handles); low.defined()) return low;
  return tensor.to(dtype);
}

}  // namespace demi::weights
