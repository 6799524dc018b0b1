#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "demi/weights/mutation_hook.h"

namespace demi::optim {

/// Notices writes to a tensor's memory that change no version, as `.data().mul_()` does. It notices
/// none before LibTorch 2.15, and none if something else watches the memory.
class WriteWatch {
 public:
  WriteWatch() = default;
  ~WriteWatch() { end(); }
  WriteWatch(WriteWatch&& other) noexcept : tensor_(std::exchange(other.tensor_, at::Tensor())) {}
  WriteWatch& operator=(WriteWatch&& other) noexcept {
    std::swap(tensor_, other.tensor_);
    return *this;
  }

  /// Watches this tensor from now on, instead of another.
  void begin(const at::Tensor& tensor) {
    end();
    if (hook(memory_of(tensor))) tensor_ = tensor;
  }
  bool written() const { return tensor_.defined() && !is_hooked(memory_of(tensor_)); }
  void end() {
    if (tensor_.defined()) unhook(memory_of(tensor_));
    tensor_.reset();
  }

 private:
  static c10::StorageImpl& memory_of(const at::Tensor& tensor) {
    return *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  }
  template <class S>
  static bool hook(S& storage) {
    if constexpr (weights::HasMaterializer<S>) {
      if (storage.has_materializer()) return false;
      storage.set_materializer([](S*) {});  // LibTorch takes it off at the first write
      return true;
    } else {
      return false;
    }
  }
  template <class S>
  static bool is_hooked(const S& storage) {
    if constexpr (weights::HasMaterializer<S>)
      return storage.has_materializer();
    else
      return true;
  }
  template <class S>
  static void unhook(S& storage) {
    if constexpr (weights::HasMaterializer<S>) storage.clear_materializer();
  }

  at::Tensor tensor_;
};

}  // namespace demi::optim
