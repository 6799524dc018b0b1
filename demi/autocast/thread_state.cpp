#include "demi/autocast/thread_state.h"

#include <ATen/ThreadLocalState.h>

#include "demi/autocast/call.h"
#include "demi/core/local_pass.h"
#include "demi/weights/weights.h"

namespace demi {

struct ThreadState::Captured {
  at::ThreadLocalState torch;
  bool cache_enabled = cache_is_enabled();
  ThreadTables tables = thread_tables;
  bool is_local = is_local_pass();

  // Sets the state that at::ThreadLocalState leaves out.
  void set_rest() const {
    at::autocast::set_autocast_cache_enabled(cache_enabled);
    thread_tables = tables;
    set_local_pass(is_local);
  }
};

struct ThreadState::Guard::Saved {
  Captured own;
  at::ThreadLocalStateGuard torch;
  explicit Saved(const Captured& wanted) : torch(wanted.torch) {}
};

ThreadState::ThreadState() : captured_(std::make_shared<const Captured>()) {}

ThreadState::Guard::Guard(const ThreadState& state)
    : saved_(std::make_unique<Saved>(*state.captured_)) {
  state.captured_->set_rest();
  weights::enter_region();
}

ThreadState::Guard::~Guard() {
  weights::leave_region();
  saved_->own.set_rest();
}

}  // namespace demi
