#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "demi/core/export.h"
#include "demi/quantization/recipe.h"

// Parameters with a compute dtype or a recipe of their own (demi::apply), looked up by the kernels.
namespace demi {

inline std::atomic<int> marked_parameters{0};

inline bool parts_in_use() { return marked_parameters.load(std::memory_order_relaxed) != 0; }

/// What demi::apply gives to a parameter: one of the two.
struct PartMark {
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // that its ops run in; undefined: none
  std::shared_ptr<const quantization::QuantizedWeight> quantized = {};  // null: no recipe
  bool operator==(const PartMark&) const = default;
};

/// Ops that take this parameter run as the mark says from now on, inside any region, and so do
/// those that take a copy which Module::clone() makes of it. If it is marked twice, the last mark
/// counts. Holds the parameter weakly. Any thread.
void mark_part(const at::Tensor& parameter, PartMark mark);
inline void mark_part(const at::Tensor& parameter, c10::ScalarType dtype) {
  mark_part(parameter, PartMark{.dtype = dtype});
}

/// The parameter follows its region again. Any thread.
void unmark_part(const at::Tensor& parameter);

/// Removes the marks of parameters that no longer exist. Each region that is entered calls it,
/// because every op looks its arguments up while there are marks.
void forget_dead_parts();

/// Marked parameters and copies of such that are alive.
DEMI_API int count_marked_parameters();

/// The mark of a parameter, of a copy or of a view of one. Empty for other tensors.
std::optional<PartMark> mark_of_part(const at::Tensor& tensor);

/// The dtype of that mark. Empty for other tensors, and for a mark without a dtype.
std::optional<c10::ScalarType> dtype_of_part(const at::Tensor& tensor);

/// The recipe of that mark, as long as its run is not past its last step; else null.
std::shared_ptr<const quantization::QuantizedWeight> recipe_of_part(const at::Tensor& tensor);

/// Marked parameters with a recipe that are alive.
inline std::atomic<int> quantized_parameters{0};

}  // namespace demi
