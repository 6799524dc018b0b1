#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "demi/core/export.h"

namespace demi::distributed {

/// The rank that keeps each tensor, by the tensor's number. The largest tensor is placed first,
/// each to the rank that has the fewest elements so far, the lowest of those (Graham 1969, "Bounds
/// on multiprocessing timing anomalies": the greatest share is at most 4/3 - 1/(3 ranks) times the
/// least possible). Every rank gets the same answer for the same sizes.
DEMI_API std::vector<int> owners_of_tensors(const std::vector<std::int64_t>& elements, int ranks);

/// Tensors of any dtypes as one row of bytes, which is read and written in pieces. Writes go
/// through copy_(), which everything that watches a tensor notices.
class ByteStream {
 public:
  /// Refers to the memory of these tensors, which are dense and stay alive.
  explicit ByteStream(const std::vector<at::Tensor>& tensors);

  std::int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  /// Copies the bytes from `begin` on to `piece`, uint8, (bytes), or from it.
  void read(std::int64_t begin, const at::Tensor& piece) const;
  void write(std::int64_t begin, const at::Tensor& piece) const;

 private:
  template <class Act>
  void each_part(std::int64_t begin, const at::Tensor& piece, Act act) const;

  std::vector<at::Tensor> bytes_;   // by tensor: uint8, (its bytes), a view of its memory
  std::vector<std::int64_t> ends_;  // by tensor, in the stream
};

class ProcessGroup;

/// A collective: writes what streams[r] of rank r holds to streams[r] of all others. The streams
/// are as long on every rank, and are on `device`. They travel in rounds of about `bucket_bytes` of
/// all ranks together. Two rounds have memory: one is packed or unpacked while the other is under
/// way.
///
/// A round on a GPU is one all-gather, in which shorter pieces are padded; where the padding would
/// be half of it, the ranks that have bytes left broadcast them. On the CPU they always do:
/// LibTorch's all-gather over Gloo makes a copy of everything, and n broadcasts take less time
/// (benchmarks/results/x86-64-avx512-bf16.md).
///
/// On a GPU both happen on its current stream: the bytes are those of the kernels enqueued before,
/// and kernels enqueued later read what has come. The host waits for the end of each round
/// (ProcessGroup::Pending::wait), behind which the next one is enqueued already.
void exchange_streams(const std::vector<ByteStream>& streams, std::int64_t bucket_bytes,
                      at::Device device, ProcessGroup& group);

}  // namespace demi::distributed
