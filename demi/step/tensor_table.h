#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "demi/kernels/step_plan.h"
#include "demi/step/backend.h"
#include "demi/step/device_plan.h"
#include "demi/step/matrix_batch.h"
#include "demi/step/member.h"
#include "demi/step/step_records.h"
#include "demi/step/streams.h"
#include "demi/step/write_watch.h"
#include "demi/weights/step_targets.h"

namespace demi::optim {

/// The parameters of one optimizer on one device, with the passes that work on them.
class TensorTable {
 public:
  /// `first`: the place of its first member among those of all tables, which are the tensors of the
  /// step's records. `state`: on the device if the kernels are a device's (make_state), else
  /// undefined.
  TensorTable(std::size_t first, TableKernels kernels, std::vector<Member> members,
              const std::vector<int>& group_of, const Groups& groups, at::Tensor state);

  kernels::StepPlan& plan() { return plan_; }
  std::vector<Member>& members() { return members_; }
  c10::Device device() const { return members_.front().work.device(); }
  /// true: the state is on the device, and that of plan() is not in use.
  bool is_on_device() const { return device_.has_value(); }
  /// The state on the device.
  const at::Tensor& state() const { return state_; }

  using Records = std::span<const TensorRecord>;  // of all tables

  /// Compares .grad of all parameters with the held gradients, and nothing else.
  void compare(std::span<Seen> seen) const;
  /// Compares as compare() does; the passes read these gradients from now on. The pointers are
  /// valid until the calling function of the optimizer ends. A lost gradient is no longer held, and
  /// its factor is dropped. Throws UsageError for a gradient that does not fit. Returns whether a
  /// 16-bit gradient was written to since it was held, or was replaced by another tensor, which the
  /// program may have made of it.
  bool read_gradients(Records records, std::span<Seen> seen);
  /// Notices a write to a 16-bit gradient from now on. One of them is watched, since clipping
  /// writes all.
  void watch_narrow();
  /// Whether a gradient is not of 16 bits.
  bool has_wide() const { return has_wide_; }

  /// fp32, (), on any device: an input on another device is copied once a step. Undefined: none.
  /// `wide_unscaled`: gradients that are not of 16 bits carry no scale.
  void set_inputs(const at::Tensor& scale, const at::Tensor& found_inf,
                  const at::Tensor& above_norm, bool wide_unscaled,
                  const kernels::StepInputs& others);
  /// Divides the gradients that are not of 16 bits by the scale, in place.
  void unscale_wide(const at::Tensor& scale);

  void measure();         // pass 1, and its sums into the state
  void keep_gradients();  // holds the present gradients until the step ends
  void note_unscaled();   // the present gradients were unscaled
  /// State of the present gradients: whether backward has made or added to one since
  /// note_unscaled(), and whether one is divided by the scale, as a whole or in part.
  struct SinceUnscaled {
    bool arrived = false, divided = false;
  };
  SinceUnscaled since_unscaled() const;
  void update(Records records);  // decides; unless skipped, pass 2 (with a trust ratio 3, too)
  void end_step();               // lets go of gradients and factors

  /// What a recording of this table's passes has kept (graph::RecordingScope).
  struct Recorded {
    std::shared_ptr<RecordedTables> tables;
    std::vector<std::shared_ptr<const weights::CapturedStep>> copies;
    std::vector<const void*> parameters;  // the memory of each member's parameter
  };
  /// After the passes of a recording.
  Recorded take_recorded();
  /// Before a replay: brings the groups' numbers and masters of parameters that the program has
  /// written to the device. false: a parameter lies in other memory.
  bool prepare_replay(const Recorded& recorded);
  /// After a replay: parameters and their copies were written.
  void note_replay();

  /// Whether parameters, the groups' states and the state are those that the table was built for.
  bool matches(const Groups& groups) const;
  /// Takes over the groups' numbers.
  void update_groups(const Groups& groups);

  /// The member of a parameter; null for a parameter of another table.
  Member* member_of(const at::Tensor& parameter);
  /// The member of a parameter that has a gradient in this step, else null.
  Member* reader_of(const at::Tensor& parameter);
  /// The place of a member among those of all tables.
  std::size_t place_of(const Member& member) const { return first_ + index_of(member); }

 private:
  /// A tensor and its copy on this table's device.
  struct DeviceCopy {
    at::Tensor source, copy;
    /// Copies only if `tensor` is not the source yet.
    const float* pointer(const at::Tensor& tensor, c10::Device device);
  };

  /// The states of a group.
  struct Kept {
    kernels::UpdateRule rule;
    std::uint32_t all, coded;  // kernels::states_kept, kernels::states_coded
    static Kept of(const kernels::Group& group);
    bool operator==(const Kept&) const = default;
  };

  std::size_t index_of(const Member& member) const {
    return static_cast<std::size_t>(&member - members_.data());
  }
  bool read_gradient(size_t i, const TensorRecord& record, Seen& seen);
  void note_stream();
  void note_stream_of_inputs();
  void begin(Records records);
  void run_update();
  void update_matrices(const kernels::StepTable& table);
  void update_batch(kernels::StepTable table, const MatrixBatch& batch, const at::Tensor& memory);
  bool has_gradient(const MatrixBatch& batch) const;
  void launch(const kernels::StepTable& table);
  void finish();

  std::size_t first_;
  TableKernels kernels_;
  std::vector<Member> members_;
  kernels::StepPlan plan_;
  at::Tensor state_;
  std::optional<DevicePlan> device_;
  std::unordered_map<const at::TensorImpl*, size_t> places_;
  weights::StepTargets targets_;  // members of Target::kParameter, in order
  DeviceCopy scale_, found_inf_, above_norm_;
  StreamUse streams_;
  WriteWatch watch_;
  std::vector<DeviceCopy> rates_;        // by group
  std::vector<Kept> kept_;               // by group
  std::vector<MatrixOptions> matrices_;  // by group; empty: no rule of matrices
  std::vector<MatrixBatch> batches_;
  int64_t grain_ = 1;  // least number of blocks for a thread
  bool has_wide_ = false;
};

}  // namespace demi::optim
