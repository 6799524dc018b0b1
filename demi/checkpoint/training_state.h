#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>

#include "demi/checkpoint/checkpoint.h"
#include "demi/core/export.h"
#include "demi/loop/job.h"

namespace demi::checkpoint {

/// The module's parameters and buffers, detached and not copied: each tensor once, under the first
/// of the names that the module has for it. save_safetensors writes them, and load(file, module)
/// reads them into a module.
DEMI_API NamedTensors named_tensors(const torch::nn::Module& module);

/// The state of a loop's objects, to be taken after GradScaler::update() or before the next
/// iteration. Gradients are not part of it. The tensors are those of the objects themselves,
/// detached, so that nothing is copied: further training changes them (Writer takes a copy). Waits
/// for the device of the scaler and of the optimizers' counts.
///
/// | in                 | names                                                                  |
/// |--------------------|------------------------------------------------------------------------|
/// | `model`            | parameters and buffers, as the module names them                       |
/// | `state`            | `optimizer/0.exp_avg`: parameter's number and name of the state        |
/// |                    | (Optimizer::state_tensors); `optimizer/archive`: what torch::save      |
/// |                    | writes of an optimizer of LibTorch's, in bytes; `average/NAME`;        |
/// |                    | `more/0`: of Job::more; `random/cpu`, `random/cuda:0`                  |
/// | `numbers`          | `optimizer/group.0`: options of a parameter group; `optimizer`:        |
/// |                    | `parameters.0`, how many it has; `scaler`; `schedule`                  |
/// | `text`             | `demi.optimizer`: the optimizer's rule or class                        |
/// | `parameters`       | `optimizer`: names of its parameters, by group                         |
///
/// The second optimizer's names begin with `optimizer.1`, its schedule's with `schedule.1`. With
/// several models a parameter's name begins with its model's. Throws UsageError if the model
/// is missing, if an optimizer has a parameter that is none of the models' and not in Job::more, or
/// two schedules, while averages are in the weights' place (EMA::swap), and between the batches of
/// a loop::Step.
DEMI_API Checkpoint capture(const loop::Job& job);

/// Puts a checkpoint into these objects: all of it, or nothing if any part does not fit. From then
/// on this process continues the checkpoint's run (save). Parameters and buffers are written in
/// place, on their own device and in their own dtype, and the weight cache notices it. Gradients
/// are dropped.
///
///   - An optimizer's state goes to the parameters of its names, whatever their order and groups
///     are now. Groups that hold other parameters than those that were saved keep their options, and
///     schedules their base rates. Without names (older checkpoints) it goes by number, and groups
///     have to have the sizes that were saved.
///   - FP32 weights may be loaded into 16-bit modules, and the other way round: FP32 weights become
///     the masters, and masters the FP32 weights.
///   - A scaler or an average that the checkpoint does not hold starts again, an average as the
///     loaded weights are; a schedule stays as it is, with a warning (TORCH_WARN) if it is at its
///     step 0 and the run is not. State in the checkpoint for objects that are not there is ignored.
///   - The state of a random generator whose device this machine does not have is left alone, with
///     one warning (TORCH_WARN) that names the devices.
///
/// Throws UsageError for names or shapes that are not the model's, for different values under two
/// names of one tensor (tied weights), for another number of optimizers, for the state of another
/// update rule or of other parameters, for a weight that would be Inf in fp16, for numbers out of
/// range.
DEMI_API void restore(const Checkpoint& checkpoint, const loop::Job& job);

/// checkpoint::save of what capture() returns.
DEMI_API std::filesystem::path save(const std::filesystem::path& folder, int64_t step,
                                    const loop::Job& job, const SaveOptions& options = {});

/// checkpoint::load and restore(), from the mapped files, so that memory grows by at most one
/// tensor beyond the objects' own. Returns the checkpoint without the tensors that were put into
/// objects: numbers, texts, and tensors of the caller's own, which own their memory. Throws what
/// the two throw, and then nothing is changed.
DEMI_API Checkpoint load(const std::filesystem::path& path, const loop::Job& job);

/// The model of a checkpoint, or the tensors of a single safetensors file, put into `model`, which
/// is moved to `device` first. A file that was written on CUDA loads on any machine. Memory grows
/// by at most one tensor beyond the model's own. Returns the checkpoint's numbers and texts. Throws
/// DataError as checkpoint::load and UsageError for names or shapes that are not the model's or
/// different values under two names of one tensor, and then nothing is changed.
DEMI_API Checkpoint load(const std::filesystem::path& path, torch::nn::Module& model,
                         c10::Device device = c10::kCPU);

}  // namespace demi::checkpoint
