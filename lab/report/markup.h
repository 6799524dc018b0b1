#pragma once

#include <string>
#include <string_view>

#include "demi/core/export.h"

namespace demi::report {

/// Text for HTML and SVG, in elements and in quoted attributes: & < > " ' are escaped; control
/// characters, which XML forbids, and broken UTF-8 become U+FFFD.
DEMI_API std::string escape_html(std::string_view text);

}  // namespace demi::report
