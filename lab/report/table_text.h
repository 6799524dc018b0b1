#pragma once

#include <string>

#include "demi/core/export.h"
#include "lab/report/table.h"
#include "lab/report/terminal.h"

namespace demi::report {

/// For a terminal, every line ended by '\n'. What is wider than the terminal is never cut off: the
/// header's words go below each other; then rows and columns are exchanged; then each row becomes a
/// list of its own.
DEMI_API std::string to_text(const Table& table, const Terminal& terminal);

}  // namespace demi::report
