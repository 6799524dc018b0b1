#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "demi/checkpoint/content_checksum.h"
#include "demi/checkpoint/manifest.h"
#include "demi/checkpoint/safetensors.h"
#include "demi/core/descriptor.h"

namespace demi::checkpoint {

/// A safetensors file before it is written: its header and the order of its tensors, which have to
/// outlive it.
class SafetensorsLayout {
 public:
  /// Throws UsageError, which names `where`, for what the format cannot hold.
  SafetensorsLayout(const NamedTensors& tensors, const Metadata& metadata, std::string_view where);

  /// Writes the whole file. Tensors of devices are copied to the CPU one by one.
  FileRecord write(const Descriptor& file) const;

 private:
  /// Puts the content's checksum into the header. Returns the checksum of the header then.
  uint32_t write_checksum(const Descriptor& file, std::vector<TensorSum> sums) const;

  std::vector<const NamedTensors::value_type*> entries_;
  std::string header_;  // with its length before it
  Metadata metadata_;   // if the content gets a checksum
};

}  // namespace demi::checkpoint
