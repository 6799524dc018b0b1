#pragma once

#include <array>
#include <memory>

#include "demi/autocast/op_table.h"
#include "demi/weights/inherited_state.h"

// The op table in which an op of this thread is looked up.
namespace demi {

inline char follows_global_marker = 0;

/// Means the global table at the time of each op.
inline const OpTable* follows_global() {
  return reinterpret_cast<const OpTable*>(&follows_global_marker);
}

using ThreadTables = std::array<const OpTable*, kDeviceTypes>;

/// The table of this thread's region for each device type; null outside of a region. Static TLS
/// (176 bytes), which is read without a call, because every op reads it.
[[gnu::tls_model("initial-exec")]] inline thread_local constinit ThreadTables thread_tables{};

/// The state of a thread's regions for the threads that work for it (autograd's for each device,
/// those of at::launch). Made only if it differs from the defaults.
struct RegionState : weights::InheritedState {
  ThreadTables tables{};
  bool cache_enabled = true;

  /// The present state of this thread's regions.
  static std::shared_ptr<RegionState> snapshot();

  /// The state that this thread inherits, and passes on itself. Null for the defaults.
  static std::shared_ptr<RegionState> of_this_thread();
  static void set(std::shared_ptr<RegionState> state);

  const OpTable* table(c10::DeviceType device) const {
    return tables[static_cast<std::size_t>(device)];
  }
};

/// The table of a region without a policy: that of this thread's region, else the inherited one,
/// else follows_global().
const OpTable* table_in_force(c10::DeviceType device);

/// The table_in_force(), with the global table of this moment in place of follows_global(). Ops
/// that run later use it, even if the global table has changed by then.
const OpTable* table_now(c10::DeviceType device);

/// Whether copies of weights may be used: LibTorch's setting, unless this thread inherits that they
/// may not.
bool cache_is_enabled();

}  // namespace demi
