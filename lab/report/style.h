#pragma once

#include <string>

namespace demi::report {

/// The page's style sheet, with the palette of palette.h filled in.
std::string style_sheet();

}  // namespace demi::report
