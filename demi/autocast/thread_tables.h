#pragma once

#include <array>
#include <memory>

#include "demi/autocast/op_table.h"
#include "demi/weights/handed_on.h"

// Which table an op of this thread is looked up in.
namespace demi {

inline char follows_global_marker = 0;

/// In place of a table: the global one, as it is at each op.
inline const OpTable* follows_global() {
  return reinterpret_cast<const OpTable*>(&follows_global_marker);
}

using ThreadTables = std::array<const OpTable*, kDeviceTypes>;

/// Of this thread's regions; null outside of any. Static TLS (176 bytes), since every op asks: an
/// access without a call.
[[gnu::tls_model("initial-exec")]] inline thread_local constinit ThreadTables thread_tables{};

/// What the regions of a thread mean for the threads that work for it (autograd's for each device,
/// those of at::launch), wherever that is not the default.
struct Inherited : weights::HandedOn {
  ThreadTables tables{};
  bool cache_enabled = true;

  /// As this thread's regions have set them now.
  static std::shared_ptr<Inherited> snapshot();

  /// Null where the defaults do. Also what this thread itself hands on.
  static std::shared_ptr<Inherited> of_this_thread();
  static void set(std::shared_ptr<Inherited> state);

  const OpTable* table(c10::DeviceType device) const {
    return tables[static_cast<std::size_t>(device)];
  }
};

/// What a region without a policy takes over: of this thread's regions, or of those that it
/// inherits, or follows_global().
const OpTable* table_in_force(c10::DeviceType device);

/// LibTorch's setting, unless the thread inherits that there is no cache.
bool cache_is_enabled();

}  // namespace demi
