#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/imported/fusing.h"

namespace demi {

namespace imported {
struct LoadedModel;
class ScriptModel;
struct StateTensor;
}  // namespace imported

/// A network that was written in Python and exported to a .pt2 file (torch.export.save), or saved
/// as TorchScript (torch.jit.save), to be run and trained without Python.
///
///     demi::ImportedModel model("model.pt2");
///     demi::optim::AdamW optimizer(model->parameters());
///     at::Tensor output = model->forward(input);
///
/// Parameters and buffers stand in modules under Python's names, in the file's strides; frozen ones
/// are frozen. Tied weights are one parameter under each of its names. The graph's operations are
/// called one by one through LibTorch's dispatcher, so autograd, regions, hooks and observers see
/// them as those of a network in C++. Assertions on dtypes are not run, devices of the export
/// become the parameters', random numbers come from LibTorch's generator in Python's order.
///
/// forward is for networks of one tensor or two; call accepts and returns the same objects as
/// Python.
///
/// A file with the graphs "model" and "eval" (scripts/demi_export.py writes both) runs the second
/// in eval mode. In a file with one graph the flags of dropout and normalisation follow the mode,
/// and notes() says so.
///
/// TorchScript is run by LibTorch's interpreter, without its own autocast pass and its profiling
/// executor while forward runs, so policies and casts of a region are those of the .pt2 file of the
/// same network. None of the guarantees above holds for TorchScript: LibTorch reads the file, so
/// take it from people whom you would let run code.
///
/// Batch normalisations of 16-bit inputs on a CPU run with the sum, ReLU and pooling that follow
/// them as one operator (demi::batch_norm_relu) where nothing else reads what they hand on; fuse()
/// says otherwise. In FP32 every operation is Python's.
///
/// The constructor throws DataError for a file that is damaged or of another kind, and UsageError,
/// with module and Python line, for an operation that cannot be run or trained. Both throw
/// UsageError for inputs that the network was not exported for, and where LibTorch refuses an
/// operation. Thread-safe as modules are: it may run in several threads if nothing writes to
/// buffers.
class DEMI_API ImportedModelImpl : public torch::nn::Module {
 public:
  explicit ImportedModelImpl(const std::filesystem::path& file);
  ~ImportedModelImpl() override;
  ImportedModelImpl(const ImportedModelImpl&) = delete;
  ImportedModelImpl& operator=(const ImportedModelImpl&) = delete;

  /// Calls the network as Python's forward: positional arguments, then keywords. Arguments and
  /// results are tensors, numbers, None, and tuples, lists and dicts of them.
  c10::IValue call(const std::vector<c10::IValue>& arguments,
                   const std::map<std::string, c10::IValue>& keywords = {});

  /// The output of a network that takes one tensor or two, and returns one. If it returns several,
  /// select_output() says which. `second` undefined: it takes one.
  at::Tensor forward(const at::Tensor& input, const at::Tensor& second = {});

  /// Chooses the tensor that forward returns: by its key in a dict, "logits"; else by a number, "0"
  /// for the first tensor of a result. Throws UsageError for one that is not there in both modes.
  void select_output(const std::string& output);

  /// Sets the batch normalisations that run as one operator with what follows them
  /// [low_precision]. TorchScript has none, whatever is set.
  void fuse(imported::Fusing fusing);
  /// How many of the graph of this mode may: their Python modules and lines, with those of what
  /// follows each.
  std::vector<std::string> fusible() const;

  /// The parameters, each once, also one with several names.
  std::vector<at::Tensor> parameters(bool recurse = true) const;

  /// A part may be frozen afterwards: named_modules()["block.bn"]->eval() sets its dropout and
  /// normalisation to eval mode. Other differences between Python's modes in that part are not
  /// known.
  void train(bool on = true) override;

  /// Python's state_dict(): parameters and persistent buffers under all their names.
  std::map<std::string, at::Tensor> state_dict() const;

  /// Notes on what the file leaves open.
  const std::vector<std::string>& notes() const;

  /// A deep copy: values, modes, frozen parameters and policies are the original's, of each part.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;
  /// Weights in this format, and from now on the inputs that have as many dimensions: channels_last
  /// for pictures spares oneDNN a reordering around each convolution. The graph's operations hand
  /// the format on as LibTorch's do. A `view` that needs contiguous memory then fails, with its
  /// Python line; to(torch::MemoryFormat::Contiguous) goes back. Throws UsageError for TorchScript.
  void to(torch::MemoryFormat format);

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(at::Tensor())})

 private:
  void clone_(torch::nn::Module& other, const std::optional<torch::Device>& device) override;
  ImportedModelImpl(std::shared_ptr<const imported::LoadedModel> loaded,
                    std::vector<imported::StateTensor> state,
                    std::unique_ptr<imported::ScriptModel> script = nullptr);

  at::Tensor only_tensor(const c10::IValue& result) const;
  void move_hidden(std::optional<torch::Device> device, std::optional<torch::Dtype> dtype);

  std::shared_ptr<const imported::LoadedModel> loaded_;
  std::vector<imported::StateTensor> state_;
  std::unique_ptr<imported::ScriptModel> script_;  // null: the graphs of loaded_ are run
  std::string output_;
  imported::Fusing fusing_ = imported::Fusing::low_precision;
  torch::MemoryFormat format_ = torch::MemoryFormat::Preserve;  // of inputs
};
TORCH_MODULE(ImportedModel);

}  // namespace demi
