#include "demi/core/local_pass.h"

#include <utility>

namespace demi {
namespace {

thread_local bool local_pass = false;

}  // namespace

bool is_local_pass() { return local_pass; }
bool set_local_pass(bool is_local) { return std::exchange(local_pass, is_local); }

}  // namespace demi
