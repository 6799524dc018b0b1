#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"

namespace demi::doctor {

/// A variable of the environment.
struct Variable {
  std::string name;                  // of the variable
  std::string meaning;               // one line for people
  std::optional<std::string> value;  // none: it is not set
};

/// The value of a variable, as std::getenv gives it.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

/// Variables that the library and the program read, by name, set or not; then those of settings
/// (DEMI_BATCH_SIZE) that are set.
DEMI_API std::vector<Variable> variables();
DEMI_API std::vector<Variable> variables(const Environment& environment);

/// Variables called DEMI_... that are set and that nothing reads, each with the nearest name that
/// something does read: "DEMI_KERNEL: nothing reads it; did you mean DEMI_KERNELS?"
DEMI_API std::vector<std::string> unknown_variables(const std::vector<std::string>& names);
/// The unknown variables of the process's environment.
DEMI_API std::vector<std::string> unknown_variables();

}  // namespace demi::doctor
