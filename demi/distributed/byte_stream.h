#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace demi::distributed {

/// Tensors of any dtypes as one row of bytes, which is read and written in pieces. Writes go
/// through copy_(), which everything that watches a tensor notices.
class ByteStream {
 public:
  /// Of the memory of these tensors, which are dense and stay alive.
  explicit ByteStream(const std::vector<at::Tensor>& tensors);

  std::int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  /// uint8, (bytes): what begins at `begin`.
  void read(std::int64_t begin, const at::Tensor& piece) const;
  void write(std::int64_t begin, const at::Tensor& piece) const;

 private:
  template <class Act>
  void each_part(std::int64_t begin, const at::Tensor& piece, Act act) const;

  std::vector<at::Tensor> bytes_;   // by tensor: uint8, (its bytes), a view of its memory
  std::vector<std::int64_t> ends_;  // by tensor, in the stream
};

}  // namespace demi::distributed
