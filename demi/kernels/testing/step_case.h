#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "demi/kernels/cpu_kernels.h"
#include "demi/kernels/step_plan.h"

// A step over tensors of given lengths with awkward values, made twice the same by the same seed:
// what the tests of several paths work on.
namespace demi::kernels::testing {

struct CaseOptions {
  UpdateRule rule = UpdateRule::adamw;
  Group group;
  Storage gradient = Storage::bf16;
  Storage copies[2] = {Storage::bf16, Storage::none};
  std::vector<std::int64_t> lengths = {0,   1,   2,   7,    8,    15,   16,    17,    31,    33,
                                       255, 256, 257, 2047, 2048, 2049, 16383, 16384, 16385, 40001};
  int offset = 0;  // elements by which every array is off a 64-byte boundary
  /// Zeros of both signs, denormals and huge values among the gradients and parameters.
  bool awkward = false;
  /// Those of moment[0] and moment[1].
  std::optional<std::array<Codec, 2>> codecs;
  std::uint64_t rounding_seed = 0;
  std::optional<WeightCodec> weight = {};  // the parameter in it, without copies
  float gradient_range = 8.0f;
  float scale = 65536.0f;
  std::uint64_t seed = 1;
};

/// Owns the memory of a case and the plan over it.
class StepCase {
 public:
  explicit StepCase(const CaseOptions& options);

  StepPlan& plan() { return *plan_; }
  /// For a rule of matrices with room for its directions, in bf16.
  StepTable table();
  /// One whole step on that path, pass by pass, each pass cut at `cut` blocks (0: in one piece).
  void step(const CpuKernels& kernels, std::int64_t cut = 0);

  float* parameter(std::size_t t) { return plan_->tensors()[t].parameter; }
  void set_gradient(std::size_t t, std::int64_t i, float value);
  /// Everything that a step may write, as bytes: parameters, moments, copies, step counts, scalars.
  std::vector<unsigned char> written() const;
  /// With one NaN for all: the sign and payload of a NaN that an operation makes are the device's.
  std::vector<unsigned char> written_with_one_nan() const;
  std::int64_t step_count(std::size_t t) const { return steps_[t]; }

 private:
  std::byte* allocate(std::int64_t elements, int bytes);
  /// The array's numbers as codes.
  Coded coded(const float* array, std::int64_t length, Codec codec);
  CodedWeight coded(const float* weights, std::int64_t length, WeightCodec codec);

  int offset_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<std::int64_t> steps_;
  std::vector<float> scalars_;
  std::vector<std::uint16_t> directions_;
  struct Writable {
    const std::byte* start;
    std::size_t bytes;
    Storage storage;  // none: codes
  };
  std::vector<Writable> writable_;
  float scale_;
  std::unique_ptr<StepPlan> plan_;
};

/// Every update rule, EMA's too.
std::vector<UpdateRule> all_rules();

/// Whether the rule's first state is one of squares: those are never below 0.
bool begins_with_squares(UpdateRule rule);

/// The paths of this machine other than reference.
std::vector<const CpuKernels*> simd_paths();

/// A deterministic value for element i; awkward ones among them when asked.
float value_at(std::uint64_t seed, std::int64_t i, float range, bool awkward);

}  // namespace demi::kernels::testing
