#include "demi/batch_norm/channels.h"

#include <cstddef>
#include <cstdint>

#include "demi/batch_norm/call.h"
#include "demi/tensor/dtype.h"

namespace demi::batch_norm {

at::MemoryFormat format_of(const at::Tensor& input) {
  return is_channels_last(input) ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
}

kernels::BatchNorm described(const at::Tensor& x, bool relu, const MaxPooling& pool) {
  kernels::BatchNorm norm{};
  norm.storage = tensor::storage_of(x.scalar_type());
  norm.channels_last = is_channels_last(x);
  norm.relu = relu;
  norm.images = x.size(0);
  norm.channels = x.size(1);
  norm.height = x.size(2);
  norm.width = x.size(3);
  const auto windows = [&](std::size_t d, std::int64_t length) {
    norm.pool.size[d] = pool.size[d];
    norm.pool.stride[d] = pool.stride[d];
    norm.pool.padding[d] = pool.padding[d];
    return (length + 2 * pool.padding[d] - pool.size[d]) / pool.stride[d] + 1;
  };
  norm.pool.height = windows(0, norm.height);
  norm.pool.width = windows(1, norm.width);
  norm.input = x.const_data_ptr();
  return norm;
}

void point_to(kernels::BatchNorm& norm, const at::Tensor& channels) {
  norm.mean = channels.const_data_ptr<float>();
  norm.scale = norm.mean + 2 * norm.channels;
  norm.shift = norm.scale + norm.channels;
}

}  // namespace demi::batch_norm
