#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace demi::products {

/// Switches autocast off until the end of the scope: the tensors have their dtypes already,
/// whatever region backward is called in.
struct NoAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autocast_dispatch_keyset};
};

}  // namespace demi::products
