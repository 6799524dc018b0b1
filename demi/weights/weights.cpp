#include "demi/weights/weights.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <cstdlib>
#include <mutex>
#include <shared_mutex>
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
at::Tensor hand_out(const LowCopy& copy, bool with_edge) {
  return with_edge ? copy.alias : copy.low;
}

at::Tensor lookup(Copies& copies, const c10::TensorImpl& leaf, c10::ScalarType dtype,
                  bool with_edge) {
  const LowCopy* copy = find(copies, dtype);
  return copy && is_current(*copy, leaf) ? hand_out(*copy, with_edge) : at::Tensor();
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
  return hand_out(*copy, with_edge);
}

Copies& region_copies(const at::Tensor& leaf) {
  Region& here = region();
  if (here.entries.size() >= here.sweep_at) here.sweep();
  auto& table = here.entries;
  auto found = table.find(leaf.unsafeGetTensorImpl());
  if (found == table.end())
    found =
        table.emplace(leaf.unsafeGetTensorImpl(), RegionEntry{WeakLeaf(leaf.getIntrusivePtr()), {}})
            .first;
  return found->second.copies;
}

// The copy of this leaf, made now where there is none; empty where there can be none.
at::Tensor kept(const at::Tensor& leaf, c10::ScalarType dtype, bool with_edge) {
  const Mode how = current_mode().load(std::memory_order_relaxed);
  if (how == Mode::off) return {};
  if (records_cast(leaf)) return {};
  const c10::TensorImpl* key = leaf.unsafeGetTensorImpl();
  bool is_own = false;
  {
    const std::shared_lock lock(cache_mutex());
    if (how == Mode::keep) {
      const auto found = owned().find(key);
      is_own = found != owned().end();
      if (is_own)
        if (auto low = lookup(found->second.copies, *key, dtype, with_edge); low.defined())
          return low;
    }
    if (!is_own) {
      auto& table = region().entries;
      const auto found = table.find(key);
      if (found != table.end())
        if (auto low = lookup(found->second.copies, *key, dtype, with_edge); low.defined())
          return low;
    }
  }
  if (!is_own && region().depth == 0) return {};
  Copies* of_region = is_own ? nullptr : &region_copies(leaf);  // may sweep, which takes the lock
  std::vector<at::Tensor> dropped;
  const std::unique_lock lock(cache_mutex());
  if (of_region) return refill(*of_region, leaf, dtype, with_edge, dropped);
  const auto found = owned().find(key);
  return found == owned().end() ? at::Tensor()
                                : refill(found->second.copies, leaf, dtype, with_edge, dropped);
}

// A module holds each parameter twice (its member and its dictionary); an activation or a batch has
// one holder.
constexpr int kHandlesOfAParameter = 2;

bool is_frozen_weight(const at::TensorBase& tensor, int handles) {
  return is_plain_leaf(tensor) &&
         static_cast<int>(tensor.use_count()) >= kHandlesOfAParameter + handles;
}

bool can_have_copy(const at::TensorBase& tensor) {
  return tensor.scalar_type() == at::kFloat && tensor.layout() == at::kStrided &&
         tensor.has_storage() && !tensor.is_neg();
}

at::Tensor copy_of_leaf(const at::Tensor& tensor, c10::ScalarType dtype, int handles) {
  if (is_trained_leaf(tensor)) return kept(tensor, dtype, at::GradMode::is_enabled());
  return is_frozen_weight(tensor, handles) ? kept(tensor, dtype, false) : at::Tensor();
}

// The whole base is cast for a view of it: of a frozen one only if the view shows as much.
at::Tensor copy_of_view(const at::Tensor& view, c10::ScalarType dtype) {
  const at::TensorBase& base = view._base();
  if (!can_have_copy(base)) return {};
  const bool trained = is_trained_leaf(base);
  if (!trained && !(view.numel() >= base.numel() && is_frozen_weight(base, /*handles=*/1)))
    return {};
  const at::Tensor low = kept(at::Tensor(base), dtype, false);
  if (!low.defined()) return {};
  const c10::InferenceMode no_inference(false);
  return alias_of_view(low, view, trained && at::GradMode::is_enabled() && view.requires_grad());
}

void drop_owned_copies() {
  std::vector<LowCopy> dropped;
  {
    const std::unique_lock lock(cache_mutex());
    for (auto& [leaf, entry] : owned())
      std::move(entry.copies.begin(), entry.copies.end(), std::back_inserter(dropped));
    for (auto& [leaf, entry] : owned()) entry.copies.clear();
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
  auto& entry = owned()[parameter.unsafeGetTensorImpl()];
  entry.parameter = parameter;
  ++entry.owners;
}

void disown(const at::Tensor& parameter) {
  Owned last;
  {
    const std::unique_lock lock(cache_mutex());
    const auto found = owned().find(parameter.unsafeGetTensorImpl());
    if (found == owned().end() || --found->second.owners > 0) return;
    last = std::move(found->second);
    owned().erase(found);
  }
  discard(std::move(last.copies));
}

bool is_owned(const at::Tensor& parameter) {
  const std::shared_lock lock(cache_mutex());
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
  if (can_have_copy(tensor)) {
    auto low = tensor.is_view() && !is_trained_leaf(tensor) ? copy_of_view(tensor, dtype)
                                                            : copy_of_leaf(tensor, dtype, handles);
    if (low.defined()) return low;
  }
  return tensor.to(dtype);
}

void enter_region() { ++region().depth; }

void leave_region() {
  if (--region().depth == 0) region().clear();
}

}  // namespace demi::weights
