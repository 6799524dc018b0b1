#pragma once

#include <ATen/core/Tensor.h>

#include "demi/core/export.h"

namespace demi::optim {

class Optimizer;

/// Takes a parameter of another number of rows in the place of one that the optimizer has, and its
/// state along: for networks that grow, and for points that are split and pruned. A row is an index
/// of the first dimension. The program first makes the new parameter, registers it in its module
/// and assigns its member:
///
///     const torch::Tensor kept = torch::cat({rows_to_keep, torch::full({added}, -1)});
///     const torch::Tensor old = points;
///     parameters_["points"] = points = make_points(kept).requires_grad_();   // in the module
///     demi::optim::replace_parameter(optimizer, old, points, kept);
///
/// `replacement`: a leaf of the old one's dtype and device; its shape differs in the first
/// dimension alone. Its values are the program's, and stay. `rows`: int64, (replacement.size(0)),
/// on any device: the row of `old` that each row was, or -1 for a new row. A row may be named any
/// number of times.
///
/// - Moments are gathered by `rows`. Those of a new row begin as a new parameter's: 0, or what the
///   rule begins with. Moments in fewer bits are decoded and encoded again, rounded to nearest.
/// - FP32 masters and remainders of 16-bit weights go along where the value is the old row's, bit
///   for bit. Elsewhere the program's value counts.
/// - Step counts stay: the parameter's own, and the optimizer's. Options, schedules, and place and
///   number of the parameter stay, too.
/// - EMA, loop::Step, DistributedDataParallel, the weight cache and demi::apply know the new
///   parameter. Averages are gathered, and begin as the weight in new rows. With several ranks
///   DistributedDataParallel makes it a collective: all ranks replace alike, which is checked by
///   checksums of `replacement` and `rows`, and the buckets are planned anew.
/// - The old gradient is left behind, and with it what unscale_ and clipping have recorded for it.
///
/// Several optimizers that hold the parameter are told one after the other. Reads `rows` on the
/// host, and with several ranks `replacement`, too. The parameter's state is made at once; nothing
/// else waits for a device. A captured step cannot be replayed after it.
///
/// Throws UsageError, and then changes nothing, for a parameter that the optimizer does not have, a
/// replacement that it has already, that is no leaf, of another dtype or device, or whose other
/// dimensions differ, one without requires_grad where the old one has it, rows that are out of
/// range, of another dtype or number, other rows than MuonOptions::split_rows of the group adds up
/// to (set it for the new parameter before the call), an optimizer that shares its state
/// (distributed::ShardedOptimizerState), averages that are in the weights' places, and between the
/// batches of a loop::Step's step.
DEMI_API void replace_parameter(Optimizer& optimizer, const at::Tensor& old,
                                const at::Tensor& replacement, const at::Tensor& rows);

}  // namespace demi::optim
