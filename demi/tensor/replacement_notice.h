#pragma once

#include "demi/tensor/replaced_parameter.h"

// The calls of whoever replaces a parameter, and of what hears of each one.
namespace demi::tensor {

/// Asks all observers of Replacement::old. Throws what they throw.
void require_replaceable(const Replacement& replacement);
/// Tells them.
void tell_of(const Replacement& replacement);
/// Calls `call` for each replacement from now on, of whichever parameter. Any thread.
void on_each_replacement(void (*call)(const Replacement&));

}  // namespace demi::tensor
