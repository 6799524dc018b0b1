#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/data/loader.h"
#include "lab/data/normalise.h"
#include "lab/predict/inputs.h"
#include "lab/workload/workload.h"

namespace demi::predict {

/// Batches of pictures, each as the model's evaluation sees it: of photographs the middle
/// (data::middle_picture), of a model of small pictures the picture itself or, of another size, the
/// shorter side scaled and the middle cut. Grey for a model of one channel: 0.299 R + 0.587 G +
/// 0.114 B. A picture that cannot be read is black, and has an error. Targets are places in
/// `inputs`.
class DEMI_API PictureInputs : public data::Loader {
 public:
  /// Keeps a view of `inputs`.
  PictureInputs(std::span<const Input> inputs, const workload::ModelData& model, int64_t batch_size,
                c10::Device device);

  int64_t examples() const override { return std::ssize(inputs_); }
  int64_t batches() const override { return (examples() + batch_size_ - 1) / batch_size_; }
  /// Each picture is decoded once: in a second pass, which PrefetchLoader would make ahead, all are
  /// empty.
  data::Batch batch(int64_t epoch, int64_t position) const override;

  /// The error of a picture whose batch has been made; "": none.
  const std::string& error(std::size_t input) const { return errors_[input]; }
  int64_t scaled() const { return scaled_; }
  int64_t made_grey() const { return made_grey_; }

 private:
  at::Tensor picture(std::size_t input) const;
  at::Tensor in_form(const at::Tensor& picture) const;

  std::span<const Input> inputs_;
  workload::DataShape shape_;
  bool from_photographs_;
  int64_t batch_size_;
  c10::Device device_;
  data::Normalise normalise_;
  mutable std::vector<std::string> errors_;  // each is written once, by the thread of its batch
  mutable std::atomic<int64_t> scaled_ = 0, made_grey_ = 0;
};

}  // namespace demi::predict
