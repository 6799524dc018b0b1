#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "demi/kernels/step_table.h"
#include "demi/optim/optimizer.h"
#include "demi/optim/tensor_table.h"

namespace demi::optim {

/// A member and the group it belongs to.
struct Placed {
  Member member;
  int group;
};

/// The step of one optimizer over its tables: what is recorded for it, its two passes, what it
/// found.
///
/// One table a device, or two where unscale_ met gradients of both widths: fp32 ones are then
/// unscaled in place, 16-bit ones still carry the scale.
class Stepper {
 public:
  Stepper(kernels::Rule rule, StepOptions options) : rule_(rule), options_(options) {}

  kernels::Rule rule() const { return rule_; }
  const StepOptions& options() const { return options_; }

  void build(const std::vector<Placed>& members, const std::vector<kernels::Group>& groups);
  /// Whether the tables still fit; if so the groups' numbers are taken over.
  bool adjust(const std::vector<kernels::Group>& groups);
  void refresh();  // takes the gradients that are there
  bool has_gradients() const;

  // Recorded for the next step. The tables must be fresh.
  void set_scale(const at::Tensor& scale);
  void unscale(const at::Tensor& scale);
  void skip_if(const at::Tensor& found_inf) { found_inf_ = found_inf; }
  bool clip_norm(float max_norm);
  void multiply(const std::vector<at::Tensor>& parameters, const at::Tensor& factor);
  void clip_value(const std::vector<at::Tensor>& parameters, float limit);
  void settle();
  at::Tensor unscaled(const at::Tensor& parameter);

  void measure();
  void step();
  void forget_records();

  /// Sums over all tables: norm, found_inf, greatest (unscaled).
  const kernels::StepState& joint() const { return joint_; }
  float scale() const { return scale_.defined() ? *scale_.const_data_ptr<float>() : 1.0F; }
  bool checks() const;  // this step reads the gradients first
  int64_t taken = 0;    // steps
  double bytes_per_parameter() const { return bytes_; }

 private:
  template <typename Do>
  void each(const Do& act);
  void set_inputs();
  void join();
  std::pair<TensorTable*, Member*> reader_of(const at::Tensor& parameter);
  float inverse_scale() const { return static_cast<float>(1.0 / static_cast<double>(scale())); }

  kernels::Rule rule_;
  StepOptions options_;
  std::vector<Placed> placed_;
  std::vector<kernels::Group> groups_;
  std::vector<TensorTable> tables_;
  std::vector<TensorTable> wide_tables_;  // made when first needed

  at::Tensor scale_;            // fp32, (), CPU; undefined: 1
  bool wide_unscaled_ = false;  // gradients that are not of 16 bits were divided in place
  bool split_ = false;          // wide_tables_ are in use
  bool factors_ = false;        // a tensor has a factor or limit of its own
  bool measured_ = false, changed_ = true;
  float max_norm_ = kernels::kNoLimit;
  at::Tensor found_inf_;  // decides instead of the gradients

  kernels::StepState joint_;
  double bytes_ = 0;
};

}  // namespace demi::optim
