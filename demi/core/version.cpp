#include "demi/core/version.h"

namespace demi {

std::string_view version() { return DEMI_VERSION; }

}  // namespace demi
