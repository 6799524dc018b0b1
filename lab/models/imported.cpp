#include "lab/models/imported.h"

#include <ATen/ops/constant_pad_nd.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <tuple>

#include "demi/core/error.h"
#include "demi/imported/imported_model.h"

namespace demi::models {
namespace {

namespace fs = std::filesystem;
using imported::GraphSummary;
using imported::InputSummary;

[[noreturn]] void refuse_file(std::string_view what, std::string_view seen,
                              std::string_view accepted, std::string_view advice) {
  refuse({.where = "models.imported_file",
          .what = what,
          .seen = seen,
          .accepted = accepted,
          .advice = advice});
}

const InputSummary& first_input(const std::string& name, const GraphSummary& graph) {
  const auto& inputs = graph.arguments;
  if (inputs.empty() || inputs.size() > 2 || !inputs[0].is_tensor)
    refuse_file(name + " does not take one tensor, or two",
                std::to_string(inputs.size()) + " inputs",
                "one tensor; texts may have their lengths, and a loss its targets, after it",
                "wrap the network in Python in one that takes them, or train it in C++ "
                "(demi::ImportedModel)");
  return inputs[0];
}

// Rows of numbers, pictures; integers are words or tokens, which the data tell apart.
data::Kind kind_of(const InputSummary& input) {
  if (!c10::isFloatingType(input.dtype)) return data::Kind::texts;
  return input.sizes.size() == 4 ? data::Kind::pictures : data::Kind::rows;
}

// Losses and metrics have the classes as the second dimension; Python's language models as the
// last.
at::Tensor classes_second(const at::Tensor& output, const at::Tensor& input) {
  const bool is_of_tokens = output.dim() == 3 && input.dim() == 2 && !input.is_floating_point();
  return is_of_tokens ? output.transpose(1, 2) : output;
}

// A batch of texts is as long as its longest, padded with 0. A network of a fixed length, or of a
// least one, has more of that. In one piece, since a graph has views of the strides of its export,
// unless the network orders it itself (channels_last).
at::Tensor input_of(const data::Batch& batch, const InputSummary& taken, bool as_it_is) {
  const bool are_texts = batch.lengths.defined() && batch.input.dim() == 2;
  const int64_t missing = are_texts ? taken.sizes[1].least - batch.input.size(1) : 0;
  if (missing > 0) return at::constant_pad_nd(batch.input, {0, missing});
  return as_it_is ? batch.input : batch.input.contiguous();
}

// The loss of a network that computes it: a scalar of input and target.
std::function<at::Tensor(const data::Batch&)> loss_of(ImportedModel model, const std::string& name,
                                                      const GraphSummary& graph,
                                                      bool channels_last) {
  const bool has_name = std::ranges::count(graph.output_names, "loss") > 0;
  if (graph.arguments.size() != 2 || (!has_name && graph.outputs != 1))
    refuse_file(name + " does not compute a loss",
                fmt::format("{} inputs, {} outputs", graph.arguments.size(), graph.outputs),
                "input and target in; a scalar out, or a dict with \"loss\"",
                "export it so, or leave out --model-output loss and name a --loss");
  if (has_name) model->select_output("loss");
  return [model, name, channels_last,
          taken = graph.arguments[0]](const data::Batch& batch) mutable {
    at::Tensor loss = model->forward(input_of(batch, taken, channels_last), batch.target);
    if (loss.dim() > 0)
      refuse_file("the loss of " + name + " is no scalar", fmt::format("{} dimensions", loss.dim()),
                  "none: the mean over the batch", "return loss.mean() in Python");
    return loss;
  };
}

void require_one_output(const std::string& name, const GraphSummary& graph) {
  if (graph.outputs == 1) return;
  const std::string numbers = fmt::format("0 to {}", graph.outputs - 1);
  refuse_file(name + " returns several tensors", fmt::format("{} outputs", graph.outputs),
              graph.output_names.empty()
                  ? numbers
                  : fmt::format("{}, or {}", fmt::join(graph.output_names, ", "), numbers),
              "--model-output names the one that is trained");
}

train::Network make_file(const std::string& name, const GraphSummary& graph,
                         const ModelOptions& options) {
  ImportedModel model{fs::path(name)};
  model->fuse(options.fusing);
  if (options.channels_last) model->to(torch::MemoryFormat::ChannelsLast);
  train::Network network;
  network.module = model.ptr();
  if (options.output == "loss") {
    network.forward = loss_of(model, name, graph, options.channels_last);
    return network;
  }
  if (options.output.empty())
    require_one_output(name, graph);
  else
    model->select_output(std::string(options.output));
  const bool takes_two = graph.arguments.size() == 2;
  network.forward = [model, takes_two, channels_last = options.channels_last,
                     taken = graph.arguments[0]](const data::Batch& batch) mutable {
    const at::Tensor input = input_of(batch, taken, channels_last);
    return classes_second(takes_two ? model->forward(input, batch.lengths) : model->forward(input),
                          input);
  };
  return network;
}

ImportedFile read_file(const std::string& name) {
  ImportedFile file{.summary = imported::summarize(name)};
  const GraphSummary& graph = file.summary.graphs.front();
  const InputSummary& input = first_input(name, graph);
  file.info = {.name = name,
               .title = "a network exported from Python",
               .reads = kind_of(input),
               .make = [name, graph](
                           const ModelOptions& options) { return make_file(name, graph, options); },
               .pictures = std::nullopt,
               .head = "",
               .is_file = true};
  return file;
}

}  // namespace

bool is_network_file(std::string_view name) { return name.ends_with(".pt2"); }

imported::Fusing parse_fusing(std::string_view name) {
  if (name == "low-precision") return imported::Fusing::low_precision;
  if (name == "always") return imported::Fusing::always;
  if (name == "never") return imported::Fusing::never;
  refuse({.where = "models.parse_fusing",
          .what = "no such choice of what is fused",
          .seen = name,
          .accepted = "low-precision, always, never"});
}

const ImportedFile& imported_file(std::string_view name) {
  using Key = std::tuple<std::string, std::uintmax_t, fs::file_time_type>;
  static std::mutex mutex;
  static std::map<Key, std::unique_ptr<const ImportedFile>> known;
  const std::string file(name);
  std::error_code unreadable;
  const Key key{file, fs::file_size(file, unreadable), fs::last_write_time(file, unreadable)};
  const std::scoped_lock lock(mutex);
  auto& entry = known[key];
  if (!entry) entry = std::make_unique<const ImportedFile>(read_file(file));
  return *entry;
}

}  // namespace demi::models
