#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/DimVector.h>
#include <c10/util/intrusive_ptr.h>

#include <optional>
#include <unordered_map>
#include <vector>

#include "demi/kernels/step_plan.h"
#include "demi/step/device_plan.h"
#include "demi/step/ownership.h"
#include "demi/step/param_state.h"
#include "demi/step/streams.h"
#include "demi/step/table_kernels.h"
#include "demi/step/write_watch.h"
#include "demi/weights/step_targets.h"

namespace demi::optim {

/// How a parameter relates to the array that the rule updates.
enum class Storage {
  kDirect,     // the parameter itself is that array
  kMaster,     // a master is; the parameter is the copy that the kernels write beside it
  kScattered,  // a dense array is (the master of a 16-bit parameter), copied to the parameter after
               // the step
};

/// One parameter of a table.
struct Member {
  at::Tensor parameter;
  ParamState* state = nullptr;
  Storage storage = Storage::kDirect;
  c10::DimVector sizes, strides;                   // of the parameter when the table was built
  c10::ScalarType dtype = c10::ScalarType::Float;  // of the parameter, likewise
  c10::Device device = c10::kCPU;                  //
  at::Tensor work;  // what is updated: fp32, or fp64 for an fp64 parameter; dense
  // Of a 16-bit parameter, when its master was last in step with it; version -2: never. The memory
  // belongs to it, since set_data() and its kin change no version.
  int64_t written_version = -2;
  c10::weak_intrusive_ptr<c10::StorageImpl> written_storage{c10::intrusive_ptr<c10::StorageImpl>()};
  const void* written_data = nullptr;
  const at::Tensor* gradient = nullptr;  // what the passes read: .grad, or `staged`
  at::Tensor staged;                     // a copy of .grad in work's layout
  bool measured = false;                 // `gradient` is what was measured
  // .grad when something was measured or recorded for a step to come, kept so that its address is
  // not used again.
  at::Tensor held;
  const void* held_data = nullptr;
  int64_t held_version = 0;
  Arrivals arrivals;  // of gradients from backward; null: not known
  std::uint64_t held_arrivals = 0;
  at::Tensor factor;  // fp32, (), on work's device, recorded for the next step; or undefined
};

/// Hyper-parameters of all parameter groups.
struct Groups {
  std::vector<kernels::Group> numbers;
  std::vector<at::Tensor> rates;  // fp64, CPU, by count of steps taken; undefined: no schedule
};

/// The parameters of one optimizer on one device, with the passes that work on them.
class TensorTable {
 public:
  /// `state`: on the device where the kernels are a device's (make_state), else undefined.
  TensorTable(TableKernels kernels, kernels::UpdateRule rule, std::vector<Member> members,
              const std::vector<int>& group_of, const Groups& groups, at::Tensor state);

  kernels::StepPlan& plan() { return plan_; }
  std::vector<Member>& members() { return members_; }
  c10::Device device() const { return members_.front().work.device(); }
  /// The state of plan() is then not in use.
  bool is_on_device() const { return device_.has_value(); }
  const at::Tensor& state() const { return state_; }  // there

  /// Takes the gradients that are there, until the call that asked for them ends. Throws UsageError
  /// for one that does not fit. Returns whether any is another than the one measured last.
  /// `unscaled`: those that are not of 16 bits carry no scale any more.
  bool refresh(bool unscaled);
  /// Of the gradients held before refresh(): still there; gone, replaced or made anew by backward
  /// (which adds to a zeroed one), which takes what was recorded for them along.
  int64_t kept() const { return kept_; }
  int64_t lost() const { return lost_; }
  /// Notices a write to a gradient of 16 bits (one of them is watched; whoever clips writes all).
  void watch_narrow();
  /// There was one since they were held.
  bool narrow_written() const { return narrow_written_; }
  bool has_gradients() const { return gradients_ > 0; }
  bool has_wide() const { return has_wide_; }  // a gradient that is not of 16 bits

  /// fp32, (), on any device; of what is on another, a copy is made once a step. Undefined: none.
  void set_inputs(const at::Tensor& scale, const at::Tensor& found_inf,
                  const kernels::StepInputs& others);
  /// Divides the gradients that are not of 16 bits by it, in place.
  void unscale_wide(const at::Tensor& scale);

  void measure();                    // pass 1, and its sums into the state
  void hold();                       // keeps the gradients that are there until the step ends
  bool holds_all_unchanged() const;  // the gradients are those that are held, untouched
  void update();                     // decides; unless skipped, pass 2 (LAMB: and 3)
  void end_step();                   // lets gradients, factors and limits go

  /// Whether parameters, groups' moments and state are still those that the table was built for.
  bool fits(const Groups& groups) const;
  void take(const Groups& groups);

  Member* member_of(const at::Tensor& parameter);  // null: of another table
  /// The parameter's place, where it has a gradient in this step; else none.
  Member* reader_of(const at::Tensor& parameter);
  kernels::TensorEntry& entry_of(const Member& member) {
    return plan_.tensors()[&member - members_.data()];
  }

 private:
  /// A tensor brought to this table's device.
  struct Brought {
    at::Tensor source, here;
    const float* pointer(const at::Tensor& tensor, c10::Device device);
  };

  bool take_gradient(size_t i, bool unscaled);
  void lose_gradient(Member& member, kernels::TensorEntry& entry);
  void note_stream();
  void begin();
  void run_update();
  void finish();

  TableKernels kernels_;
  std::vector<Member> members_;
  kernels::StepPlan plan_;
  at::Tensor state_;
  std::optional<DevicePlan> device_;
  std::unordered_map<const at::TensorImpl*, size_t> places_;
  weights::StepTargets targets_;  // members of Storage::kDirect, in order
  Brought scale_, found_inf_;
  StreamUse streams_;
  WriteWatch watch_;
  std::vector<Brought> rates_;  // by group
  std::vector<int> moments_;    // by group
  int64_t grain_ = 1;           // blocks a thread takes at least
  int64_t gradients_ = 0, kept_ = 0, lost_ = 0;
  bool has_wide_ = false, narrow_written_ = false;
};

/// Moments that the rule keeps for a parameter of that group.
int moments_of(kernels::UpdateRule rule, const kernels::Group& group);

}  // namespace demi::optim
