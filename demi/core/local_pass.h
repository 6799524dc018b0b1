#pragma once

#include "demi/core/export.h"

namespace demi {

/// Whether this thread makes a pass that the other ranks of its job do not make
/// (distributed::LocalBatchNorm). Code that runs a part of the pass in another thread, or once
/// more, sets it there.
DEMI_API bool is_local_pass();
/// Returns what it was.
DEMI_API bool set_local_pass(bool is_local);

}  // namespace demi
