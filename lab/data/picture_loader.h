#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "demi/core/export.h"
#include "demi/data/loader.h"
#include "demi/data/order.h"
#include "lab/data/picture_folder.h"

namespace demi::data {

class Normalise;

/// The pictures of a loader, their order, and their preparation.
struct PictureLoaderOptions {
  OrderOptions order = {};       // batch size, shuffling, seed, limit, ranks
  int64_t size = 224;            // height and width of what comes out
  double least_area = 1;         // above 0, up to 1. Below 1: a random window of that share of the
                                 // picture's area up to all of it. 1: the window in the middle
  bool horizontal_flip = false;  // mirror each picture with probability 1/2
  std::vector<double> mean{0.485, 0.456, 0.406};  // of red, green, blue in [0, 1]; ImageNet's
  std::vector<double> std{0.229, 0.224, 0.225};   // of the same
  c10::Device device = c10::kCPU;                 // where the batches are made
};

/// Batches of pictures that are read and decoded when they are asked for: (N, 3, size, size) fp32,
/// channels_last, (x / 255 - mean) / std. Without a random window the middle is used. Pictures are
/// scaled bilinearly with antialiasing. Window and mirroring are functions of seed, epoch and
/// position alone. A batch's pictures are shared among the calling thread's OpenMP threads; in a
/// PrefetchLoader each worker decodes a batch of its own.
class DEMI_API PictureLoader : public Loader {
 public:
  /// Throws UsageError.
  PictureLoader(PictureFolder folder, PictureLoaderOptions options);

  int64_t examples() const override { return order_.examples(); }
  int64_t all_examples() const override { return order_.all_examples(); }
  int64_t left_out() const override { return order_.left_out(); }
  int64_t batches() const override { return order_.batches(); }
  /// Throws as read_picture.
  Batch batch(int64_t epoch, int64_t position) const override;

 private:
  at::Tensor picture(int64_t file, int64_t epoch, int64_t item) const;

  PictureFolder folder_;
  PictureLoaderOptions options_;
  Order order_;
  std::shared_ptr<const Normalise> normalise_;
};

}  // namespace demi::data
