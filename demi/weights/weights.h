#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <limits>

#include "demi/core/export.h"

/// Low precision copies of FP32 parameters: one cast per parameter and per change of that
/// parameter.
///
/// A copy is valid while nothing wrote to the parameter's storage (mutation_hook.h), and version,
/// sizes, strides and storage are as they were when the copy was made. All functions may be called
/// from any thread, except that a parameter must not be written and used at the same time. Nothing
/// here synchronises with a device: a cast is put on the current CUDA stream, and other streams are
/// made to wait for it. Writes to a parameter are ordered by who makes them, as for any tensor.
namespace demi::weights {

/// How long copies live. The environment's DEMI_WEIGHT_CACHE=keep|region|off decides; without it
/// keep where the mutation hook costs foreign code nothing (LibTorch 2.15 and newer), else region.
enum class Mode {
  keep,    // copies of owned parameters live until the parameter changes, of all others until the
           // region ends
  region,  // all copies live until the outermost autocast region of their thread ends
  off,     // every use casts
};

DEMI_API Mode mode();

/// Drops all copies first. Not while another thread is in a region.
DEMI_API void set_mode(Mode mode);

/// Copies of this parameter are kept across regions from now on (Mode::keep). Counted: each call
/// wants its disown(). Optimizers call it for their parameters; a user may for a frozen weight.
/// Holds the parameter until disowned. Any dtype is accepted; only floating point ones ever have
/// copies.
DEMI_API void own(const at::Tensor& parameter);

/// Undoes one own(); the last one drops the copies. Nothing happens for a parameter that is not
/// owned.
DEMI_API void disown(const at::Tensor& parameter);

DEMI_API bool is_owned(const at::Tensor& parameter);

/// Says that the parameter was written in a way that LibTorch does not notice: through a raw
/// pointer kept from before its last use, say (docs/reference/autocast.md has the list). Writes
/// through `p.data()`, `p.detach()` or a tensor that shares the storage are seen without.
DEMI_API void mark_dirty(const at::Tensor& parameter);

/// Counts since the process started or reset_stats(); copies and bytes are those alive now, in all
/// threads.
struct Stats {
  std::int64_t casts = 0;   // of parameters, to any low precision dtype
  std::int64_t copies = 0;  // alive
  std::int64_t bytes = 0;   // of the copies alive
};
DEMI_API Stats stats();
DEMI_API void reset_stats();

/// Where more than `bytes` of copies would be alive, further weights are cast at every use. No
/// limit by default.
DEMI_API void set_capacity(std::int64_t bytes = std::numeric_limits<std::int64_t>::max());

/// Drops the copies of owned parameters and of this thread's region. Parameters stay owned.
DEMI_API void drop();

/// `tensor` in `dtype` for an op of an autocast region, from a copy where there may be one:
/// `tensor` is a parameter, or a view of one (t, narrow, select, chunk, expand, permute ...).
/// Gradients flow to the FP32 parameter, those of several calls added up in FP32. Never written to.
///
/// Copies are made for leaves that require grad, and for frozen ones that something besides the
/// caller holds (a module holds each parameter twice) from their second use in a region on;
/// everything else is cast as by tensor.to(dtype). `handles` counts what the caller itself holds of
/// the tensor: 1 for a boxed call, whose stack keeps a reference, 2 for an element of a list there,
/// else 0.
DEMI_API at::Tensor low_precision(const at::Tensor& tensor, c10::ScalarType dtype, int handles = 0);

/// Marks a region of this thread, in which copies of parameters that nobody owns live. Nested ones
/// count.
DEMI_API void enter_region();
DEMI_API void leave_region();

}  // namespace demi::weights
