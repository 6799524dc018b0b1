#pragma once

#include <c10/core/DeviceType.h>

#include <array>
#include <atomic>
#include <string>
#include <string_view>

#include "demi/autocast/op_policy.h"

// The op policy in the form that kernels read: one byte for each op. Making a table registers the
// kernels of the ops that it names (kernels.h), and those kernels look up the table.
namespace demi {

constexpr int kMostOps = 16384;  // LibTorch has some 4,000 ops that can have a rule
constexpr int kDeviceTypes = static_cast<int>(c10::COMPILE_TIME_MAX_DEVICE_TYPES);

struct OpTable {
  std::array<OpCategory, kMostOps> category;
};

/// The number of an op, which never changes in this process. "softmax.int" and "aten::softmax.int"
/// are one op. Any thread.
int op_number(std::string_view op);
std::string op_name(int number);

/// The table of this policy on this device. Equal tables are one object, and none is ever
/// destroyed, because a kernel in another thread may be reading it. Registers kernels for the ops
/// that the table names. Any thread.
const OpTable* table_of(const OpPolicy& policy, c10::DeviceType device);

/// The table of global_op_policy(); makes it if there is none.
const OpTable* make_global_table(c10::DeviceType device);

inline std::array<std::atomic<const OpTable*>, kDeviceTypes> global_tables{};

/// The table of global_op_policy(). One atomic load.
inline const OpTable* global_table(c10::DeviceType device) {
  const OpTable* table =
      global_tables[static_cast<std::size_t>(device)].load(std::memory_order_acquire);
  return table ? table : make_global_table(device);
}

/// Registers the kernels of the global policy for this device. Loads LibTorch's CUDA part for CUDA.
/// demi's kernels come before those that LibTorch's part for the device registers, even if that
/// part was loaded after an earlier region.
void bring_kernels(c10::DeviceType device);

/// Adds a user's op to the global table and to all tables that are made from now on.
void add_default_rule(c10::DeviceType device, OpRule rule);

/// Brings LibTorch's own kernels back, for measurements and tests; the next table_of() registers
/// demi's again. No other thread may be in a region.
DEMI_API void remove_kernels(c10::DeviceType device);

/// Registers demi's kernels again at once.
DEMI_API void install_kernels(c10::DeviceType device);

}  // namespace demi
