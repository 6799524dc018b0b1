#include "demi/weights/inherited_state.h"

#include <ATen/ThreadLocalPythonObjects.h>

namespace demi::weights {
namespace {

using Objects = at::impl::ThreadLocalPythonObjects;

[[gnu::tls_model("initial-exec")]] thread_local constinit bool objects_are_gone = false;

// LibTorch's objects are a thread_local of its own. A region of static or thread_local lifetime may
// be left after that.
bool has_objects() {
  struct Watch {
    Watch() { Objects::contains(""); }  // makes them, so that they go after this
    ~Watch() { objects_are_gone = true; }
  };
  if (!objects_are_gone) static thread_local const Watch watch;
  return !objects_are_gone;
}

}  // namespace

std::shared_ptr<InheritedState> inherited_state(const char* name) {
  if (!has_objects() || !Objects::contains(name)) return nullptr;
  return std::static_pointer_cast<InheritedState>(Objects::get(name));
}

void set_inherited_state(const char* name, std::shared_ptr<InheritedState> object) {
  if (has_objects()) Objects::set(name, std::move(object));
}

}  // namespace demi::weights
