#pragma once

#include <c10/core/Device.h>
#include <c10/core/MemoryFormat.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "demi/core/export.h"
#include "demi/data/epoch_on_device.h"
#include "demi/data/loader.h"
#include "demi/data/order.h"
#include "lab/data/image_set.h"

namespace demi::data {

class Normalise;

/// The pictures of a loader, their order, and their preparation.
struct ImageLoaderOptions {
  OrderOptions order = {};        // batch size, shuffling, seed, limit, ranks
  std::vector<double> mean = {};  // of each channel in [0, 1]; empty: 0
  std::vector<double> std = {};   // of each channel; empty: 1
  /// Pads by so many black pixels and crops a random window of the old size; 0: no crop.
  int64_t crop_padding = 0;
  bool horizontal_flip = false;    // mirror each picture with probability 1/2
  c10::Device device = c10::kCPU;  // where the pictures are kept and the batches are made
  c10::MemoryFormat memory_format = c10::MemoryFormat::ChannelsLast;  // of the batches
};

/// Batches of pictures, (x / 255 - mean) / std in fp32. The whole set is kept as uint8 on the
/// device; selection and augmentation work on whole uint8 batches, then one pass converts and one
/// shifts. Nothing synchronises.
class DEMI_API ImageLoader : public Loader {
 public:
  /// The set's tensors are shared, not copied, where they are on the device already. Throws
  /// UsageError.
  ImageLoader(ImageSet set, ImageLoaderOptions options);

  int64_t examples() const override { return order_.examples(); }
  int64_t all_examples() const override { return order_.all_examples(); }
  int64_t left_out() const override { return order_.left_out(); }
  int64_t batches() const override { return order_.batches(); }
  Batch batch(int64_t epoch, int64_t position) const override;
  /// (N, 1): the picture; with crops or mirrors (N, 4): also the window's top and left pixel in the
  /// padded picture, and 1 if it is mirrored. Undefined on a CPU.
  at::Tensor choice(int64_t epoch, int64_t position) const override;
  Batch chosen(const at::Tensor& choice) const override;

  /// The pictures, on the device.
  const ImageSet& set() const { return set_; }

 private:
  bool augments() const { return options_.crop_padding > 0 || options_.horizontal_flip; }
  at::Tensor drawn(const at::Tensor& pictures, int64_t epoch, int64_t position) const;
  at::Tensor drawn_in(int64_t epoch) const;
  Batch batch_of(const at::Tensor& choice) const;
  at::Tensor augmented(const at::Tensor& images, const at::Tensor& choice) const;

  ImageSet set_;
  ImageLoaderOptions options_;
  Order order_;
  EpochOnDevice epoch_;
  at::Tensor rows_, columns_;  // (H, 1), (1, W) int64 on the device: 0, 1, ...
  std::shared_ptr<const Normalise> normalise_;
};

}  // namespace demi::data
