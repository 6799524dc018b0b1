#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <vector>

#include "demi/core/export.h"

namespace demi::weights {

struct CapturedStep;

/// The copies of some parameters that recorded work reads (set_captures_step). While it lives,
/// later copies of these parameters are made in the same memory. One thread at a time.
class DEMI_API RecordedCopies {
 public:
  RecordedCopies() = default;
  /// The valid copies of owned parameters, which it holds.
  explicit RecordedCopies(const std::vector<at::Tensor>& parameters);

  /// Before a replay: casts what the program has written to since. false: a copy lies in other
  /// memory than the recorded work reads, or there is none any more.
  bool refresh() const;

 private:
  struct Copy {
    at::Tensor parameter, low;
    c10::ScalarType dtype;
  };
  std::vector<Copy> copies_;
  std::vector<std::shared_ptr<const CapturedStep>> held_;  // as a captured step holds its copies
};

}  // namespace demi::weights
