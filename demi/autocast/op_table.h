#pragma once

#include <c10/core/DeviceType.h>

#include <array>
#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "demi/autocast/op_policy.h"

// The op policy in the form that a kernel reads: one byte for an op.
namespace demi {

constexpr int kMostOps = 16384;  // LibTorch has some 4,000 that can have a rule
constexpr int kDeviceTypes = static_cast<int>(c10::COMPILE_TIME_MAX_DEVICE_TYPES);

struct OpTable {
  std::array<OpCategory, kMostOps> category;
};

/// "softmax.int" and "aten::softmax.int" are one op; the number is the process' and stays. Any
/// thread.
int op_number(std::string_view op);
std::string op_name(int number);

/// The table of this policy on this device. Equal tables are one object, and none is ever
/// destroyed: a kernel in another thread may be reading it. Registers kernels of ours for what the
/// table names.
const OpTable* table_of(const OpPolicy& policy, c10::DeviceType device);

/// The table of global_op_policy(), made where there is none yet.
const OpTable* make_global_table(c10::DeviceType device);

inline std::array<std::atomic<const OpTable*>, kDeviceTypes> global_tables{};

/// One atomic load.
inline const OpTable* global_table(c10::DeviceType device) {
  const OpTable* table =
      global_tables[static_cast<std::size_t>(device)].load(std::memory_order_acquire);
  return table ? table : make_global_table(device);
}

/// The kernels for the global policy, in front of those that LibTorch's part for the device (loaded
/// at run time, CUDA's by this call) registered, also where it came after an earlier region.
void bring_kernels(c10::DeviceType device);

/// An op of a user, in the global table and in all that are compiled from now on.
void add_default_rule(c10::DeviceType device, OpRule rule);

/// LibTorch's own kernels again, for measurements and tests; the next table_of() brings ours back.
/// No other thread may be in a region.
DEMI_API void remove_kernels(c10::DeviceType device);

/// Brings ours back at once.
DEMI_API void install_kernels(c10::DeviceType device);

}  // namespace demi
