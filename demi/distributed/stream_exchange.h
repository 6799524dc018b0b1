#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "demi/distributed/byte_stream.h"

namespace demi::distributed {

class ProcessGroup;

/// A collective: writes what streams[r] of rank r holds to streams[r] of all others. The streams
/// are as long on every rank, and lie on `device`. They travel in rounds of about `bucket_bytes` of
/// all ranks together. Two rounds have memory: one is packed or unpacked while the other is under
/// way.
///
/// A round on a GPU is one all-gather, in which shorter pieces are padded; where the padding would
/// be half of it, the ranks that have bytes left broadcast them. On the CPU they always do:
/// LibTorch's all-gather over Gloo makes a copy of everything, and n broadcasts take less time
/// (benchmarks/results/distributed_cpu.md).
///
/// On a GPU both happen on its current stream: the bytes are those of the kernels enqueued before,
/// and kernels enqueued later read what has come. The host waits for the end of each round
/// (ProcessGroup::Pending::wait), behind which the next one is enqueued already.
void exchange_streams(const std::vector<ByteStream>& streams, std::int64_t bucket_bytes,
                      at::Device device, ProcessGroup& group);

}  // namespace demi::distributed
