#pragma once

#include <functional>
#include <string_view>

#include "demi/imported/prepare.h"

namespace demi::imported {

struct NestedCall {
  Nested nested;
  Arguments inputs;  // of its graph
};

bool is_higher_order(std::string_view target);

/// An operator whose argument is a graph: grad mode, autocast, checkpoint. Throws UsageError for
/// others.
NestedCall prepare_nested(const Node& node,
                          const std::function<InputRole(const Argument&)>& role_of,
                          const TrainingFlags& flags);

}  // namespace demi::imported
