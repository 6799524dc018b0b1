#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
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
/// One table a device, and one for fp64. Where the only table is served by a device's kernels, the
/// device decides, and the host reads nothing; with several tables the host joins what they found,
/// which waits for each device once a step.
class Stepper {
 public:
  Stepper(kernels::Rule rule, StepOptions options) : rule_(rule), options_(options) {}

  kernels::Rule rule() const { return rule_; }
  const StepOptions& options() const { return options_; }

  void build(const std::vector<Placed>& members, const Groups& groups);
  /// Whether the tables still fit; if so the groups' numbers are taken over.
  bool adjust(const Groups& groups);
  void refresh();  // takes the gradients that are there
  bool has_gradients() const;

  // Recorded for the next step. The tables must be fresh.
  bool set_scale(const at::Tensor& scale, bool wide_unscaled);  // whether that is another one
  void unscale(const at::Tensor& scale);
  void skip_if(const at::Tensor& found_inf) { found_inf_ = found_inf; }
  bool clip_norm(float max_norm);
  void multiply(const std::vector<at::Tensor>& parameters, const at::Tensor& factor);
  void clip_value(const std::vector<at::Tensor>& parameters, float limit);
  void settle();
  at::Tensor unscaled(const at::Tensor& parameter);

  void measure();  // for a step to come
  void step();
  void forget_records();
  /// No step comes of what was looked at: the records hold on only for untouched gradients.
  void end_look();
  bool holds() const { return holds_; }  // gradients, since something was measured or recorded

  // What measure() found, over all tables: fp32, ().
  at::Tensor found_inf() const;
  at::Tensor grad_norm() const;
  at::Tensor greatest() const;  // unscaled
  /// What step() did.
  StepResult result(const Optimizer* optimizer, const at::Tensor& loss) const;

  int64_t taken() const;  // steps; waits for the device
  void set_taken(int64_t taken);
  double bytes_per_parameter() const { return bytes_; }

 private:
  bool checks() const;  // this step reads the gradients first
  bool skips_nonfinite() const;
  std::optional<c10::Device> deciding_device() const;
  std::vector<TensorTable> make_tables(const std::vector<Placed>& placed, const Groups& groups);
  bool refresh_tables();
  bool holds_all_unchanged() const;
  void forget_for_new_gradients();
  void warn_of_writes();
  void freeze_clip();
  void bring_records(std::vector<TensorTable>& from);
  void join_earlier_found();
  void hold();
  void set_inputs();
  void measure_now();
  void join();
  void update_joined();
  at::Tensor recorded(int field, float joint) const;
  at::Tensor clip_factor() const;
  float scale() const;
  std::pair<TensorTable*, Member*> reader_of(const at::Tensor& parameter);

  kernels::Rule rule_;
  StepOptions options_;
  std::vector<TensorTable> tables_;
  std::map<std::pair<int, int>, at::Tensor> states_;  // by device type and index

  at::Tensor scale_;            // fp32, (); undefined: 1
  bool wide_unscaled_ = false;  // gradients that are not of 16 bits were divided in place
  bool factors_ = false;        // a tensor has a factor or limit of its own
  bool measured_ = false, changed_ = true;
  bool holds_ = false;
  bool sealed_ = false;  // end_look(): a write to a held gradient takes the records along
  bool warned_ = false;  // of a write to a 16-bit gradient that still carries its scale
  float max_norm_ = kernels::kNoLimit;
  at::Tensor found_inf_;      // fp32, (): decides instead of the gradients
  at::Tensor earlier_found_;  // fp32, (): what was found when the clip was measured

  kernels::StepState joint_;  // where the host joins
  at::Tensor record_;         // fp32, (5): a kernels::StepRecord, where the device decides
  int64_t taken_ = 0;         // where the host joins
  double bytes_ = 0;
};

}  // namespace demi::optim
