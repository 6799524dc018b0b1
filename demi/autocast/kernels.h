#pragma once

#include <c10/core/DeviceType.h>

#include <string>

// demi's kernels on LibTorch's Autocast dispatch keys. They replace LibTorch's for the process, so
// at::autocast's own setters use them, too. Removing them brings LibTorch's back exactly.
namespace demi {

/// Registers a kernel for the op ("aten::softmax.int") on this device, once. Not thread-safe: the
/// caller holds the lock of the op table.
void ensure_kernel(c10::DeviceType device, const std::string& op, int number);

/// Removes all kernels of this device. The same holds for threads.
void drop_kernels(c10::DeviceType device);

}  // namespace demi
