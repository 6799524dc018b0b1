#pragma once

#include <string>

#include "demi/core/export.h"

namespace demi::distributed {

class ProcessGroup;

/// The text of rank `root`, on every rank. A collective; throws as ProcessGroup::broadcast.
DEMI_API std::string broadcast_text(const std::string& own, int root, ProcessGroup& group);

}  // namespace demi::distributed
