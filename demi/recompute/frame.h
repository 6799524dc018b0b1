#pragma once

#include <torch/csrc/autograd/saved_variable.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "demi/recompute/forward_state.h"
#include "demi/recompute/kept_products.h"
#include "demi/recompute/outside_tensors.h"
#include "demi/recompute/recompute.h"
#include "demi/recompute/saved_tensor_hooks.h"

namespace demi::recomputation {

/// One call of recompute(): the function, its inputs and the state that it was run in. Hooks in the
/// graph hold it, one for each tensor that autograd would have saved, by the tensor's number. Any
/// thread may call it, as backward: autograd's threads for several devices do so at once.
class Frame : public std::enable_shared_from_this<Frame> {
 public:
  Frame(Function function, const Tensors& inputs, const RecomputeOptions& options);

  /// Runs the function for the first time.
  Tensors run(const Tensors& inputs);

  /// The tensor of this number; runs the function again if it is not there.
  at::Tensor saved(std::size_t number);

  /// The graph has no use for it any more.
  void release(std::size_t number) noexcept;

 private:
  class Absent;
  class FirstRun;
  class Remade;
  class SecondRun;

  /// A tensor that was to be saved, as the first run made it.
  struct Place {
    at::ScalarType dtype;
    c10::Device device;
    c10::SmallVector<std::int64_t, 5> sizes;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // dead, if the function has made it
    std::int64_t version;
  };
  /// A tensor as the second run made it.
  struct Made {
    at::Tensor tensor;
    std::int64_t version = 0;
  };
  struct Leaf {
    at::Tensor leaf;
    std::int64_t version;
  };

  std::size_t add_place(const at::Tensor& tensor);
  void check_place(std::size_t number, const at::Tensor& made) const;
  void check_outside() const;
  void run_again();
  void call_again(const Tensors& inputs);
  void forget_after_backward();

  Function function_;
  RecomputeOptions options_;
  std::vector<torch::autograd::SavedVariable> inputs_;
  ForwardState state_;
  std::optional<KeptProducts> products_;
  OutsideTensors outside_;
  std::vector<Leaf> leaves_;
  std::vector<Place> places_;
  // Guards those below, and second runs. Recursive: what a second run replaces may be a tensor of
  // the first one, whose hooks then go.
  std::recursive_mutex mutex_;
  std::vector<Made> made_;
};

}  // namespace demi::recomputation
