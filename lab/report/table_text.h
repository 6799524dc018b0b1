#pragma once

#include <string>

#include "demi/core/export.h"
#include "lab/report/table.h"
#include "lab/report/terminal.h"

namespace demi::report {

/// The table for a terminal, every line ended by '\n'. A table that is too wide is never cut off:
/// the words of its header go below each other; if that is not enough, rows and columns are
/// exchanged; at last each row becomes a list.
DEMI_API std::string to_text(const Table& table, const Terminal& terminal);

}  // namespace demi::report
