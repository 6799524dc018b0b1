#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace demi::products {

/// What runs under it has its dtypes already, whatever region backward is called in.
struct NoAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autocast_dispatch_keyset};
};

}  // namespace demi::products
