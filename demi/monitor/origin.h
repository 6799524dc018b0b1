#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"

namespace demi::monitor {

/// The origin of an Inf or NaN of a step.
struct Origin {
  /// The part of the step in which it was found.
  enum class Place : std::uint8_t {
    data,      // the batch held it already
    state,     // a parameter, moment or buffer held it before the step
    update,    // the optimizers' step wrote it to a parameter or a moment
    buffer,    // forward wrote it to a buffer, such as a running variance
    forward,   // an op of forward or of the loss
    backward,  // an op of backward
  };
  /// A tensor that the op read.
  struct Input {
    std::string what;  // "fp16 (64, 10)"
    /// The range of its finite values.
    double least = 0, greatest = 0;
  };
  /// The step repeated in another way: whether its loss and gradients are finite.
  struct Trial {
    /// Whether the region and the loss scale were switched on.
    bool autocast = true, scaler = true;
    /// Whether loss and gradients of the repeated step were finite.
    bool loss_is_finite = false, gradients_are_finite = false;
    bool values_are_finite = true;  // of forward; read where the Inf or NaN vanishes again
  };

  /// The step's epoch and number, both from 1.
  std::int64_t epoch = 1, step = 1;
  Place place = Place::forward;  // where it was found
  /// Place::data: "input". state: "exp_avg of fc.weight". update, buffer: the parameter or buffer.
  /// forward, backward: the layer whose weights the op reads, else the layer before; empty: none.
  std::string name;
  bool reads_weights = false;  // of the layer that is named
  std::string op;              // forward, backward: "aten::div"
  /// backward: the function that ran the op ("DivBackward0"), "" of a tensor's hook. forward: the
  /// op that ran inside of `op`, if it is another one.
  std::string inner;
  std::string forward_op;  // backward: whose backward it is, as `op` of forward; "": not known
  /// The op refused its arguments, as `masked_fill` refuses a number that fp16 does not hold: the
  /// first line of what it threw. Else "".
  std::string refusal;
  /// Whether neither loss nor gradients hold it: 1 / Inf is 0.
  bool vanishes = false;
  std::vector<Input> inputs;           // of the innermost op
  std::vector<std::string> nonfinite;  // state, update, buffer: each tensor in words
  /// forward, backward: the three other ways to run the step, for a mixed or scaled run.
  std::vector<Trial> trials;

  /// Whether the step is sound without loss scaling: a dynamic scale backs off, and nothing is
  /// wrong.
  DEMI_API bool is_loss_scale() const;
};

/// "forward".
DEMI_API std::string_view name_of(Origin::Place place);

/// The op or tensor that made it, and where: "aten::log made it in forward, after the layer fc".
DEMI_API std::string cause_of(const Origin& origin);

/// Sentences: what, where, with which inputs, what the trials say, and what to do.
DEMI_API std::string to_string(const Origin& origin);

}  // namespace demi::monitor
