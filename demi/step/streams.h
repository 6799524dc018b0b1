#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <optional>
#include <vector>

#include "demi/core/export.h"

// Streams of a device. If there are several, memory goes back to LibTorch's allocator only when
// every stream that works on it is done, and a stream reads what another one writes only after
// that.
namespace demi::optim {

/// The device's current stream; none on the CPU.
DEMI_API std::optional<c10::Stream> current_stream(c10::Device device);

/// Whether the device's current stream is being captured into a graph.
DEMI_API bool is_capturing(c10::Device device);

/// The stream on which the results of present launches can be read later. None if the reader
/// orders: on the CPU, and for a graph, which may be replayed on any stream.
DEMI_API std::optional<c10::Stream> ordered_stream(c10::Device device);

/// Makes the device's current stream wait for the work that `written_on` holds so far.
DEMI_API void wait_for(c10::Stream written_on);

/// The streams that work on some memory of ours.
class DEMI_API StreamUse {
 public:
  /// True once for each stream: the memory is to be recorded for it (record_stream, which does
  /// nothing for the stream that the memory was made on).
  bool is_new(c10::Stream stream);

 private:
  std::vector<c10::Stream> seen_;
};

/// Never gives this memory back, since a captured graph writes to it when its owner has gone. Meant
/// for the few bytes of a loss scale. Any thread.
DEMI_API void keep_for_graphs(const at::Tensor& tensor);
/// Number of tensors kept so far.
DEMI_API std::size_t kept_for_graphs();

}  // namespace demi::optim
