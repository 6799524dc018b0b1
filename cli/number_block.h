#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/output.h"
#include "demi/core/dtype.h"

namespace demi::cli {

/// What `demi number --block` is asked.
struct BlockOfNumbers {
  std::string form;                 // "mxfp8"
  std::vector<std::string> values;  // numbers or expressions
  const Format* format;             // nullptr: the form's default
  std::optional<std::string> tensor_amax;
};

/// Prints the scale of the values and what each of them becomes. Throws UsageError for a form,
/// values or a format that are none.
void show_block_of_numbers(const BlockOfNumbers& asked, const Output& output);

}  // namespace demi::cli
