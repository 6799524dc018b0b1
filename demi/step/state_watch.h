#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "demi/core/export.h"
#include "demi/step/param_state.h"

namespace demi::optim {

/// The memory of parameters' states at one moment. The tables of a step hold its addresses, and a
/// program may put another tensor in a state's place between two steps, or give a tensor other
/// memory (set_data). Writes to the memory itself do not matter.
class DEMI_API StateWatch {
 public:
  /// The tensors of one state among all that are watched.
  struct Range {
    std::size_t begin = 0, count = 0;
  };

  Range add(const ParamState& state);
  /// False for a state of another type, too.
  bool is_unchanged(Range range, const torch::optim::OptimizerParamState& state) const;
  void clear() { seen_.clear(); }

 private:
  struct Seen {
    explicit Seen(const at::Tensor& tensor);
    bool is(const at::Tensor& tensor) const;

    /// Keeps the address of the storage, and not its memory. Null: the tensor is undefined.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::int64_t offset = 0, elements = 0;
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    bool is_contiguous = false;
  };
  std::vector<Seen> seen_;
};

}  // namespace demi::optim
