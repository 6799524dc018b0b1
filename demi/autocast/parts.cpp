#include "demi/autocast/parts.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/clone_ops.h>
#include <c10/core/StorageImpl.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "demi/tensor/replacement_notice.h"

namespace demi {
namespace {

// A mark and its tensor or memory, held weakly: while the mark is there, no other object gets its
// address.
template <class Holder>
struct Mark {
  Holder of;
  PartMark says;
};

using Parameter = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
using Memory = c10::weak_intrusive_ptr<c10::StorageImpl>;

// Never destroyed: kernels may run in threads that outlive static objects.
struct Marks {
  std::shared_mutex mutex;
  std::unordered_map<const c10::TensorImpl*, Mark<Parameter>> by_parameter;
  // Copies of marked parameters. Module::clone() and to() make a copy first and then put its memory
  // into another parameter, by set_data().
  std::unordered_map<const c10::StorageImpl*, Mark<Memory>> by_memory;

  void count() {
    marked_parameters = static_cast<int>(by_parameter.size() + by_memory.size());
    const auto has_recipe = [](const auto& entry) { return !!entry.second.says.quantized; };
    quantized_parameters = static_cast<int>(std::ranges::count_if(by_parameter, has_recipe) +
                                            std::ranges::count_if(by_memory, has_recipe));
  }
};

Marks& marks() {
  static auto* all = new Marks();
  return *all;
}

c10::StorageImpl* memory_of(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  return impl->has_storage() ? impl->unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

// The caller holds the lock.
std::optional<PartMark> by_parameter(const Marks& all, const at::Tensor& tensor) {
  auto found = all.by_parameter.find(tensor.unsafeGetTensorImpl());
  if (found == all.by_parameter.end() && tensor.is_view())
    found = all.by_parameter.find(tensor._base().unsafeGetTensorImpl());
  if (found == all.by_parameter.end()) return std::nullopt;
  return found->second.says;
}

// The caller holds the lock.
std::optional<PartMark> by_memory(const Marks& all, const at::Tensor& tensor) {
  if (all.by_memory.empty()) return std::nullopt;
  const auto found = all.by_memory.find(memory_of(tensor));
  if (found == all.by_memory.end()) return std::nullopt;
  return found->second.says;
}

// A copy within a graph is a result of the parameter, not another parameter. The mark of a
// parameter is younger than that of its memory: a policy that was applied later counts.
std::optional<PartMark> mark_of_copies(const at::Tensor& tensor) {
  auto& all = marks();
  const std::shared_lock lock(all.mutex);
  if (auto mark = by_parameter(all, tensor))
    return at::GradMode::is_enabled() ? std::nullopt : std::move(mark);
  return by_memory(all, tensor);
}

at::Tensor marked_like(const at::Tensor& original, at::Tensor copy) {
  if (!parts_in_use()) return copy;
  const auto mark = mark_of_copies(original);
  c10::StorageImpl* memory = memory_of(copy);
  if (!mark || !memory) return copy;
  auto& all = marks();
  const std::unique_lock lock(all.mutex);
  all.by_memory.insert_or_assign(
      memory,
      Mark<Memory>{Memory(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(memory)), *mark});
  all.count();
  return copy;
}

at::Tensor clone(c10::DispatchKeySet keys, const at::Tensor& self,
                 std::optional<at::MemoryFormat> format) {
  return marked_like(
      self, at::_ops::clone::redispatch(keys & c10::after_ADInplaceOrView_keyset, self, format));
}

at::Tensor to_copy(c10::DispatchKeySet keys, const at::Tensor& self,
                   std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                   std::optional<at::Device> device, std::optional<bool> pin_memory,
                   bool non_blocking, std::optional<at::MemoryFormat> format) {
  return marked_like(
      self, at::_ops::_to_copy::redispatch(keys & c10::after_ADInplaceOrView_keyset, self, dtype,
                                           layout, device, pin_memory, non_blocking, format));
}

// A key that every tensor has and at which LibTorch itself has nothing for these two. The pointer
// is kept for checkers of leaks.
void watch_copies() {
  [[gnu::used]] static const torch::Library* const kernels = [] {
    auto* library = new torch::Library(torch::Library::IMPL, "aten",
                                       c10::DispatchKey::ADInplaceOrView, __FILE__, __LINE__);
    library->impl("clone", TORCH_FN(clone));
    library->impl("_to_copy", TORCH_FN(to_copy));
    return library;
  }();
  static_cast<void>(kernels);
}

// The mark goes to the parameter that stands in the place of another one.
void pass_on(const tensor::Replacement& replacement) {
  auto& all = marks();
  std::optional<PartMark> mark;
  {
    const std::shared_lock lock(all.mutex);
    mark = by_parameter(all, replacement.old);
    if (!mark) mark = by_memory(all, replacement.old);
  }
  if (mark) mark_part(replacement.by, *std::move(mark));
}

void watch_replacements() {
  [[maybe_unused]] static const bool once = (tensor::on_each_replacement(&pass_on), true);
}

}  // namespace

void mark_part(const at::Tensor& parameter, PartMark mark) {
  watch_copies();
  watch_replacements();
  auto& all = marks();
  const std::unique_lock lock(all.mutex);
  all.by_parameter.insert_or_assign(
      parameter.unsafeGetTensorImpl(),
      Mark<Parameter>{Parameter(parameter.getIntrusivePtr()), std::move(mark)});
  all.count();
}

void unmark_part(const at::Tensor& parameter) {
  auto& all = marks();
  const std::unique_lock lock(all.mutex);
  all.by_parameter.erase(parameter.unsafeGetTensorImpl());
  all.by_memory.erase(memory_of(parameter));
  all.count();
}

void forget_dead_parts() {
  auto& all = marks();
  const std::unique_lock lock(all.mutex);
  const auto is_dead = [](const auto& entry) { return entry.second.of.expired(); };
  std::erase_if(all.by_parameter, is_dead);
  std::erase_if(all.by_memory, is_dead);
  all.count();
}

int count_marked_parameters() { return marked_parameters; }

std::optional<PartMark> mark_of_part(const at::Tensor& tensor) {
  auto& all = marks();
  std::optional<PartMark> mark;
  {
    const std::shared_lock lock(all.mutex);
    if (auto of_parameter = by_parameter(all, tensor)) return of_parameter;
    mark = by_memory(all, tensor);
  }
  // Marks the parameter itself, which may get other memory later.
  if (mark) mark_part(tensor.is_view() ? at::Tensor(tensor._base()) : tensor, *mark);
  return mark;
}

std::optional<c10::ScalarType> dtype_of_part(const at::Tensor& tensor) {
  const auto mark = mark_of_part(tensor);
  if (!mark || mark->dtype == c10::ScalarType::Undefined) return std::nullopt;
  return mark->dtype;
}

std::shared_ptr<const quantization::QuantizedWeight> recipe_of_part(const at::Tensor& tensor) {
  if (quantized_parameters.load(std::memory_order_relaxed) == 0 || !tensor.defined()) return {};
  const auto mark = mark_of_part(tensor);
  return mark && mark->quantized && mark->quantized->is_in_force() ? mark->quantized : nullptr;
}

}  // namespace demi
