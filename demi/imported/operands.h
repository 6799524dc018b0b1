#pragma once

#include <ATen/core/function_schema.h>

#include <functional>
#include <optional>
#include <string>

#include "demi/imported/graph.h"
#include "demi/imported/prepared_graph.h"

namespace demi::imported {

/// The slot of a value.
using FindSlot = std::function<std::int32_t(const std::string& name)>;

/// The operand of a file's argument, as the operator's schema takes it: numbers where a float or a
/// tensor is taken, a number where a list is, the run's device in place of the exported one.
/// Nothing: the argument is not of the schema's type.
std::optional<Operand> operand_of(const Argument& argument, const c10::Argument& schema,
                                  const FindSlot& slot);

/// The operand of an argument of unknown type.
std::optional<Operand> plain_operand(const Argument& argument, const FindSlot& slot);

}  // namespace demi::imported
