#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "demi/checkpoint/contents.h"
#include "demi/core/export.h"

namespace demi::inspect {

/// The difference between two tensors of one name, in two files.
struct TensorDifference {
  /// A kind of difference between two tensors.
  enum class Kind { values, dtype, shape, only_in_first, only_in_second };

  std::string name;                                       // the tensor's name
  Kind kind = Kind::values;                               // in what they differ
  std::optional<checkpoint::StoredTensor> first, second;  // none where the tensor is missing
  /// Pairs of elements, and those that differ in a bit, or, between two dtypes, in their value. For
  /// `values` and `dtype`.
  int64_t elements = 0, different_elements = 0;
  /// The largest |first - second| of the pairs of finite numbers, in fp64. 0 of pairs that differ
  /// in their bits alone (0 and -0).
  double max_abs_difference = 0;
  /// Different pairs in which one is NaN or Inf.
  int64_t non_finite = 0;
};

/// An entry of two checkpoints' numbers or texts. None: it is missing there.
template <class Value>
struct EntryDifference {
  std::string name;  // "scaler/scale"
  /// The two values.
  std::optional<Value> first, second;
};

/// The differences between two files or checkpoints. Names are those of both sides, in the order of
/// StoredTensor lists. Measured entries of checkpoints (is_measured) differ between any two runs:
/// tensors are listed apart, numbers and texts left out. A model's weights and a single file have
/// none, whatever the names.
struct Difference {
  int64_t compared = 0;  // tensors of either side, without measured ones
  /// Tensors that differ; `times`: those that were measured.
  std::vector<TensorDifference> tensors, times;
  std::vector<EntryDifference<double>> numbers;    // numbers that differ
  std::vector<EntryDifference<std::string>> text;  // texts that differ
};

/// Whether an entry is a measurement of the machine rather than of the training: "seconds" is a
/// word of its name ("history/steps.data_seconds"), or it is in the part "measured", where a run's
/// peak of memory is.
DEMI_API bool is_measured(const std::string& name);

/// Reads the tensors of both in parts: about 50 MB of memory for any size. Throws DataError. If one
/// of them is a single file and the other one a checkpoint, the checkpoint's model is compared
/// alone.
DEMI_API Difference difference(const checkpoint::Contents& first,
                               const checkpoint::Contents& second);

}  // namespace demi::inspect
