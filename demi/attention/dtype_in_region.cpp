#include "demi/attention/dtype_in_region.h"

namespace demi::sdpa {
namespace {

constinit DtypeInRegion known = nullptr;  // set while the library is loaded

}  // namespace

void set_dtype_in_region(DtypeInRegion function) { known = function; }
DtypeInRegion dtype_in_region() { return known; }

}  // namespace demi::sdpa
