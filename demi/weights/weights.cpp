#include "demi/weights/weights.h"

#include <ATen/ATen.h>
#include <c10/core/AutogradState.h>
#include <c10/core/InferenceMode.h>

#include <cstdlib>
#include <mutex>
#include <string>

#include "demi/core/error.h"
#include "demi/core/nearest.h"
#include "demi/weights/alias.h"
#include "demi/weights/cache.h"
#include "demi/weights/capture.h"

namespace demi::weights {
namespace {

Mode mode_of_environment() {
  const char* word = std::getenv("DEMI_WEIGHT_CACHE");
  if (!word || !*word) return hook_is_free() && hook_works() ? Mode::keep : Mode::region;
  const std::vector<std::string> known{"keep", "region", "off"};
  if (word == known[0]) return hook_works() ? Mode::keep : Mode::region;
  if (word == known[1]) return Mode::region;
  if (word == known[2]) return Mode::off;
  throw UsageError({.where = "weights.mode",
                    .what = "DEMI_WEIGHT_CACHE has a value that is not known",
                    .seen = word,
                    .advice = did_you_mean(word, known)});
}

std::atomic<Mode>& current_mode() {
  static std::atomic<Mode> value(mode_of_environment());
  return value;
}

// A copy found valid, as the op shall get it. Empty: there is none, or it has no alias yet and one
// is wanted.
at::Tensor hand_out(const LowCopy* copy, const c10::TensorImpl& leaf, bool with_edge) {
  if (!copy || !is_current(*copy, leaf)) return {};
  return with_edge ? copy->alias : copy->low;
}

// Under the exclusive lock. What it replaces is moved to `dropped`, to be destroyed outside of it.
at::Tensor refill(Copies& copies, const at::Tensor& leaf, c10::ScalarType dtype, bool with_edge,
                  std::vector<at::Tensor>& dropped) {
  LowCopy* copy = find(copies, dtype);
  if (!copy || !is_current(*copy, *leaf.unsafeGetTensorImpl())) {
    if (copy) {
      dropped.insert(dropped.end(), {std::move(copy->alias), std::move(copy->low)});
      copies.erase(copies.begin() + (copy - copies.data()));
    }
    auto made = make_copy(leaf, dtype, uses_hooks());
    if (!made) return {};
    copies.push_back(std::move(*made));
    copy = &copies.back();
  }
  if (with_edge && !copy->alias.defined()) {
    const c10::InferenceMode no_inference(false);
    copy->alias = alias_of_leaf(copy->low, leaf);
  }
  return with_edge ? copy->alias : copy->low;
}

Copies& region_copies(Region& here, const at::Tensor& leaf) {
  if (here.entries.size() >= here.sweep_at) here.sweep();
  auto& table = here.entries;
  auto found = table.find(leaf.unsafeGetTensorImpl());
  if (found == table.end())
    found =
        table.emplace(leaf.unsafeGetTensorImpl(), RegionEntry{WeakLeaf(leaf.getIntrusivePtr()), {}})
            .first;
  return found->second.copies;
}

// Under the shared lock.
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

at::Tensor make_one(Region& here, const at::Tensor& leaf, c10::ScalarType dtype, bool with_edge,
                    bool is_own) {
  Copies* copies = is_own ? nullptr : &region_copies(here, leaf);  // may sweep: takes the lock
  std::vector<at::Tensor> dropped;
  const std::unique_lock lock(cache_mutex());
  if (copies) {
    ++here.generation;
  } else {
    ++owned_generation;
    const auto found = owned().find(leaf.unsafeGetTensorImpl());
    if (found == owned().end()) return {};
    copies = &found->second.copies;
  }
  return refill(*copies, leaf, dtype, with_edge, dropped);
}

// The copy of this leaf, made now where there is none; empty where there can be none.
at::Tensor kept(const at::Tensor& leaf, c10::ScalarType dtype, bool with_edge) {
  const Mode how = current_mode().load(std::memory_order_relaxed);
  if (how == Mode::off) return {};
  if (leaf.is_cuda() && records_cast(leaf)) return {};
  const c10::TensorImpl* key = leaf.unsafeGetTensorImpl();
  Region& here = region();
  bool is_own = false;
  {
    const Reading lock;
    const LowCopy* copy = search(here, key, dtype, how == Mode::keep);
    if (auto low = hand_out(copy, *key, with_edge); low.defined()) return low;
    is_own = how == Mode::keep && owned().contains(key);
  }
  if (!is_own && here.depth == 0) return {};
  return make_one(here, leaf, dtype, with_edge, is_own);
}

// A module holds each parameter twice (its member and its dictionary); an activation or a batch has
// one holder.
constexpr int kHandlesOfAParameter = 2;

bool is_held_by_others(const at::TensorBase& tensor, int handles) {
  return static_cast<int>(tensor.use_count()) >= kHandlesOfAParameter + handles;
}

bool can_have_copy(const at::TensorBase& tensor) {
  return tensor.scalar_type() == at::kFloat && tensor.layout() == at::kStrided &&
         tensor.has_storage() && !tensor.is_neg();
}

// The whole base is cast for a view of it: of a frozen one only if the view shows as much.
at::Tensor copy_of_view(const at::Tensor& view, c10::ScalarType dtype) {
  const at::TensorBase& base = view._base();
  if (!can_have_copy(base)) return {};
  const Kind kind = kind_of(base);
  const bool trained = kind == Kind::trained_leaf;
  const bool frozen = kind == Kind::plain_leaf && view.numel() >= base.numel() &&
                      is_held_by_others(base, /*handles=*/1);
  if (!trained && !frozen) return {};
  const at::Tensor low = kept(at::Tensor(base), dtype, false);
  if (!low.defined()) return {};
  const c10::InferenceMode no_inference(false);
  return alias_of_view(low, view, trained && at::GradMode::is_enabled() && view.requires_grad());
}

at::Tensor copy_of(const at::Tensor& tensor, c10::ScalarType dtype, int handles) {
  switch (kind_of(tensor)) {
    case Kind::trained_leaf:
      return kept(tensor, dtype, c10::AutogradState::get_tls_state().get_grad_mode());
    case Kind::plain_leaf:
      return is_held_by_others(tensor, handles) ? kept(tensor, dtype, false) : at::Tensor();
    case Kind::view:
      return copy_of_view(tensor, dtype);
    case Kind::other:
      break;
  }
  return {};
}

void drop_owned_copies() {
  std::vector<LowCopy> dropped;
  {
    const std::unique_lock lock(cache_mutex());
    ++owned_generation;
    for (auto& [leaf, entry] : owned()) {
      std::move(entry.copies.begin(), entry.copies.end(), std::back_inserter(dropped));
      entry.copies.clear();
    }
  }
  discard(std::move(dropped));
}

}  // namespace

Mode mode() { return current_mode(); }

void set_mode(Mode how) {
  drop();
  current_mode() = how == Mode::keep && !hook_works() ? Mode::region : how;
}

bool uses_hooks() { return hook_works() && (hook_is_free() || mode() == Mode::keep); }

void own(const at::Tensor& parameter) {
  const std::unique_lock lock(cache_mutex());
  ++owned_generation;
  auto& entry = owned()[parameter.unsafeGetTensorImpl()];
  entry.parameter = parameter;
  ++entry.owners;
}

void disown(const at::Tensor& parameter) {
  Owned last;
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
}

bool is_owned(const at::Tensor& parameter) {
  const Reading lock;
  return owned().contains(parameter.unsafeGetTensorImpl());
}

void mark_dirty(const at::Tensor& parameter) {
  const std::unique_lock lock(cache_mutex());
  if (uses_hooks())
    StorageMark::strike(*parameter.storage().unsafeGetStorageImpl());
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

at::Tensor low_precision(const at::Tensor& tensor, c10::ScalarType dtype, int handles) {
  if (tensor.scalar_type() == dtype) return tensor;
  if (can_have_copy(tensor))
    if (auto low = copy_of(tensor, dtype, handles); low.defined()) return low;
  return tensor.to(dtype);
}

void enter_region() { ++region().depth; }

void leave_region() {
  if (--region().depth == 0) region().clear();
}

}  // namespace demi::weights
