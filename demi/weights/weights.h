#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "demi/core/export.h"

/// Low precision copies of FP32 parameters: one cast for each parameter and each change of that
/// parameter.
///
/// A copy is valid as long as nothing wrote to the parameter's storage (mutation_hook.h), and
/// version, sizes, strides and storage are as they were when the copy was made. All functions may
/// be called from any thread, but a parameter must not be written and used at the same time.
/// Nothing here synchronises with a device: a cast goes to the current CUDA stream, and other
/// streams wait for it. The caller orders writes to a parameter, as for any tensor.
namespace demi::weights {

/// The lifetime of copies. The environment's DEMI_WEIGHT_CACHE=keep|region|off sets it. The default
/// is keep on LibTorch 2.15 and newer, where the mutation hook costs foreign code nothing, else
/// region.
enum class Mode {
  /// Copies of owned parameters live until the parameter changes, all others until the region ends.
  keep,
  /// All copies live until the outermost autocast region of their thread ends.
  region,
  /// Every use casts.
  off,
};

/// The mode in use.
DEMI_API Mode mode();

/// Drops all copies and sets the mode. Must not be called while another thread is in a region.
DEMI_API void set_mode(Mode mode);

/// Keeps copies of this parameter across regions from now on (Mode::keep). Reference counted: call
/// disown() once for each own(). demi's optimizers call it for their parameters; you may call it
/// for a frozen weight. Holds the parameter until it is disowned. Any dtype is accepted; only FP32
/// parameters ever have copies.
DEMI_API void own(const at::Tensor& parameter);

/// Undoes one own(); the last call drops the copies. Does nothing for a parameter that is not
/// owned.
DEMI_API void disown(const at::Tensor& parameter);

/// Whether own() was called more often than disown().
DEMI_API bool is_owned(const at::Tensor& parameter);

/// Invalidates the parameter's copies. Call it after a write that LibTorch does not notice, for
/// example through a raw pointer from before the parameter's last use; docs/reference/weights.md
/// has the list. Writes through `p.data()`, `p.detach()` or a tensor that shares the storage are
/// noticed without it.
DEMI_API void mark_dirty(const at::Tensor& parameter);

/// `casts` counts since the process started or reset_stats(); `copies` and `bytes` are those alive
/// now, in all threads.
struct Stats {
  std::int64_t casts = 0;   // of parameters, to any low precision dtype
  std::int64_t copies = 0;  // alive
  std::int64_t bytes = 0;   // of the copies alive
};
/// Counters of the process. Any thread.
DEMI_API Stats stats();
/// Sets `casts` to 0.
DEMI_API void reset_stats();

/// Limits the bytes of copies that are alive; further weights are cast at every use. No limit by
/// default.
DEMI_API void set_capacity(std::int64_t bytes = std::numeric_limits<std::int64_t>::max());

/// Drops the copies of owned parameters and of this thread's region. Parameters stay owned.
DEMI_API void drop();

/// `tensor` in `dtype` for an op of an autocast region; from a copy if `tensor` is a parameter, or
/// a view of one (t, narrow, select, chunk, expand, permute, ...). Gradients flow to the FP32
/// parameter; those of several calls are added up in FP32. The result must not be written to.
///
/// Copies are made of leaves that require grad, and of frozen leaves from their second use in a
/// region on, if they are held by others than the caller (a module holds each parameter twice). All
/// other tensors are cast as by tensor.to(dtype). `handles` is the number of references to the
/// tensor that the caller itself holds: 1 for a boxed call, whose stack keeps one, 2 for an element
/// of a list there, else 0.
DEMI_API at::Tensor low_precision(const at::Tensor& tensor, c10::ScalarType dtype, int handles = 0);

/// The copies of this parameter that are alive: those of an owned one, and those of this thread's
/// region. They must not be written to.
DEMI_API std::vector<at::Tensor> copies_of(const at::Tensor& parameter);

/// Whether the step that refreshes the copies is captured in one CUDA graph with the forward pass.
/// A replay runs no host code, so a recorded use of a copy reads the values of the last eager step
/// or cast. False (default): a use while the current stream is captured records a cast, so a replay
/// reads the weight as it is then. True: such a use reads the copy if it is valid. After a write to
/// the weight between replays, use the weight once in a region before the next replay, which
/// refreshes the copy. LibTorch before 2.15 does not know that a stream is captured: capture with
/// AutocastOptions{.cache_enabled = false} there. Any thread.
DEMI_API void set_captures_step(bool captures);
/// The value that set_captures_step() has set.
DEMI_API bool captures_step();

/// Enters and leaves a region of this thread, which keeps copies of parameters that are not owned
/// until the outermost region is left. Autocast calls them.
DEMI_API void enter_region();
/// Leaves it. Autocast calls it.
DEMI_API void leave_region();

}  // namespace demi::weights
