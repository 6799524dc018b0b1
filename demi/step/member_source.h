#pragma once

#include <vector>

#include "demi/step/member.h"

namespace demi::optim {

/// The source of a pending step's parameters: its optimizer.
class MemberSource {
 public:
  virtual ~MemberSource() = default;

  /// Hyper-parameters for the next step. Throws UsageError for one out of its range.
  virtual const Groups& groups() = 0;

  /// Whether members() would return the same as last time.
  virtual bool is_unchanged() const = 0;

  /// All parameters that have a gradient or a state.
  virtual std::vector<GroupedMember> members(const Groups& groups) = 0;

  /// Whether any parameter has a gradient. Checks nothing.
  virtual bool has_gradients() const = 0;
};

}  // namespace demi::optim
