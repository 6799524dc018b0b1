#pragma once

#include <c10/core/DeviceType.h>

#include <string>

// Kernels of ours on LibTorch's Autocast dispatch keys. They replace LibTorch's for the process, so
// raw at::autocast setters get them too; removing them brings LibTorch's back exactly.
namespace demi {

/// Registers a kernel for the op ("aten::softmax.int") on this device, once. The caller serialises.
void ensure_kernel(c10::DeviceType device, const std::string& op, int number);

void drop_kernels(c10::DeviceType device);

}  // namespace demi
