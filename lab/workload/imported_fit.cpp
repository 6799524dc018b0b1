#include "lab/workload/imported_fit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "demi/core/error.h"
#include "demi/data/loader.h"
#include "demi/imported/imported_model.h"
#include "demi/tensor/module_tensors.h"
#include "lab/models/seeded.h"
#include "lab/workload/imported_table.h"

namespace demi::workload {
namespace {

using imported::GraphSummary;
using imported::InputSummary;
using imported::SizeSummary;

constexpr std::string_view kDynamic =
    "export it again with a batch that may change: demi_export.py does, or dynamic_shapes "
    "of torch.export.export";

[[noreturn]] void refuse_fit(const std::string& what, const std::string& seen,
                             const std::string& accepted, std::string_view advice) {
  throw UsageError({.where = "workload.read_data",
                    .what = what,
                    .seen = seen,
                    .accepted = accepted,
                    .advice = advice});
}

/// The sizes of one example; -1: any.
std::vector<int64_t> example_sizes(const settings::Resolved& run, const DataShape& shape) {
  switch (run.data->kind) {
    case data::Kind::pictures:
      return {shape.channels, shape.size, shape.size};
    case data::Kind::rows:
      return {run.config.in};
    case data::Kind::tokens:
      return {run.config.context};
    case data::Kind::texts:
      break;
  }
  return {-1};
}

bool allows(const SizeSummary& size, int64_t value) {
  return value < 0 || (value >= size.least && value <= size.most);
}

std::string text_of(const InputSummary& input) {
  std::vector<std::string> sizes;
  for (const SizeSummary& size : input.sizes) sizes.push_back(size.text);
  return fmt::format("{} ({})", input.name, fmt::join(sizes, ", "));
}

void require_examples(const std::string& name, const InputSummary& input,
                      const settings::Resolved& run, const DataShape& shape) {
  const std::vector<int64_t> sizes = example_sizes(run, shape);
  bool fits = input.sizes.size() == sizes.size() + 1;
  for (std::size_t i = 0; fits && i < sizes.size(); ++i)
    fits = allows(input.sizes[i + 1], sizes[i]);
  if (fits) return;
  std::string seen = "(batch";
  for (const int64_t size : sizes) seen += size < 0 ? ", any" : fmt::format(", {}", size);
  refuse_fit("the data " + run.config.data + " have another shape than the input of " + name,
             seen + ")", text_of(input),
             "name data of that shape (--image-size, --in, --context), or export the network with "
             "an example of these data");
}

/// Requires --max-length for a network that takes texts up to a length: texts are cut only on
/// request.
void require_length(const std::string& name, const InputSummary& input,
                    const settings::Resolved& run) {
  if (run.data->kind != data::Kind::texts || !input.sizes[1].has_most()) return;
  const int64_t most = input.sizes[1].most, said = run.config.max_length;
  if (said > 0 && said <= most) return;
  refuse_fit("texts may be longer than " + name + " takes",
             said > 0 ? fmt::format("--max-length {}", said) : "--max-length 0: all of a text",
             fmt::format("at most {} words", most),
             fmt::format("--max-length {} keeps the first of each text; or export the network with "
                         "a length that may change",
                         most));
}

/// The batches of one pass over a set: whole ones, and the last.
struct Pass {
  const data::Loader* loader;
  int64_t batch_size;
  std::string_view option, limit;  // by which the user names sizes

  std::set<int64_t> sizes() const {
    std::set<int64_t> all;
    if (loader == nullptr) return all;
    if (loader->examples() >= batch_size) all.insert(batch_size);
    if (const int64_t last = loader->examples() % batch_size; last > 0) all.insert(last);
    return all;
  }
};

void require_batches(const std::string& name, const InputSummary& input, const Pass& pass) {
  const SizeSummary& batch = input.sizes.front();
  for (const int64_t size : pass.sizes()) {
    if (allows(batch, size)) continue;
    std::string advice(kDynamic);
    if (batch.is_fixed())
      advice +=
          fmt::format("; or {} {} and a {} that it divides", pass.option, batch.least, pass.limit);
    refuse_fit(name + " takes no batch of this size",
               fmt::format("{}, of {} examples in batches of {}", size, pass.loader->examples(),
                           pass.batch_size),
               batch.is_fixed() ? std::to_string(batch.least)
                                : fmt::format("{} to {}", batch.least, batch.most),
               advice);
  }
}

data::Batch zeros_for(const settings::Resolved& run, const InputSummary& input,
                      const DataShape& shape, int64_t rows) {
  std::vector<int64_t> sizes = example_sizes(run, shape);
  constexpr int64_t kAnyLength = 8;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] < 0)
      sizes[i] = std::clamp(kAnyLength, input.sizes[i + 1].least, input.sizes[i + 1].most);
  const SizeSummary& batch = input.sizes.front();
  sizes.insert(sizes.begin(), std::clamp(rows, batch.least, batch.most));
  const auto dtype = c10::isFloatingType(input.dtype) ? at::kFloat : at::kLong;
  // The greatest number of a word or token: an embedding of fewer fails here.
  const int64_t value = dtype == at::kLong ? std::max<int64_t>(shape.vocabulary - 1, 0) : 0;
  data::Batch zeros{.input = at::full(sizes, value, at::device(run.device).dtype(dtype))};
  if (run.data->kind == data::Kind::texts)
    zeros.lengths = at::full({sizes[0]}, sizes[1], at::kLong);
  return zeros;
}

/// The batch with targets as the loaders of these data have them.
data::Batch with_target(data::Batch batch, const settings::Resolved& run, const DataShape& shape) {
  if (!settings::has_own_loss(run.config)) return batch;
  const int64_t rows = batch.input.size(0);
  const auto numbers = batch.input.options().dtype(at::kFloat),
             classes = batch.input.options().dtype(at::kLong);
  switch (run.data->kind) {
    case data::Kind::tokens:
      batch.target = at::zeros_like(batch.input);
      break;
    case data::Kind::rows:
      batch.target = at::zeros({rows, run.config.out}, numbers);
      break;
    case data::Kind::texts:
      batch.target =
          shape.classes == 2 ? at::zeros({rows, 1}, numbers) : at::zeros({rows}, classes);
      break;
    case data::Kind::pictures:
      batch.target = at::zeros({rows}, classes);
  }
  return batch;
}

void require_output(const std::string& name, const at::Tensor& output, int64_t examples,
                    const settings::Resolved& run, const Workload& workload) {
  // The output as Python returns it: the network has put the tokens second.
  const bool is_of_tokens = run.data->kind == data::Kind::tokens && output.dim() == 3;
  const std::vector<int64_t> sizes = (is_of_tokens ? output.transpose(1, 2) : output).sizes().vec();
  const std::string seen = fmt::format("({})", fmt::join(sizes, ", "));
  const auto classes = static_cast<int64_t>(workload.classes.size());
  const std::string& loss = run.config.loss;
  const auto refuse = [&](const std::string& accepted, std::string_view advice) {
    refuse_fit("the output of " + name + " does not fit the loss " + loss, seen, accepted, advice);
  };
  const bool is_made = run.data->kind == data::Kind::rows && loss == "mse";
  if (is_made && output.numel() != examples * run.config.out)
    refuse(fmt::format("({}, {}), as the targets", examples, run.config.out),
           "--out names the numbers of a target");
  const bool has_tokens = is_of_tokens && sizes.back() >= workload.shape.vocabulary;
  if (run.data->kind == data::Kind::tokens && !has_tokens)
    refuse(fmt::format("({}, length, {}): one number for each token that may come next", examples,
                       workload.shape.vocabulary),
           "--tokenizer names that of the network");
  const bool has_rows = output.dim() > 0 && output.size(0) == examples;
  if (loss == "bce" && !(has_rows && output.numel() == examples))
    refuse(fmt::format("({}, 1): one number for each example, before the sigmoid", examples),
           "--loss cross-entropy takes one for each class");
  if (loss == "cross-entropy" && classes > 0 &&
      !(has_rows && output.dim() == 2 && output.size(1) == classes))
    refuse(fmt::format("({}, {}): one number for each of the {} classes, before the softmax",
                       examples, classes, classes),
           "give the network a last layer of that size in Python, and export it again");
}

/// The parameters to be trained that the output does not depend on.
std::vector<std::string> untrained(const train::Network& network, const at::Tensor& output,
                                   const std::string& name) {
  if (!output.requires_grad())
    refuse_fit("nothing of " + name + " would be trained",
               "an output that depends on no parameter with requires_grad", "an output that does",
               "--model-output names another one, or leave parameters unfrozen in Python");
  output.sum().backward();
  std::vector<std::string> names;
  for (const auto& [own, parameter] : tensor::parameters_once(*network.module))
    if (parameter.requires_grad() && !parameter.grad().defined()) names.push_back(own);
  return names;
}

/// The fewest rows to try the network with: 1 if training has such a batch, else 2, since batch
/// norm does not train on one row.
int64_t least_rows(const settings::Resolved& run, const Workload& workload) {
  const std::set<int64_t> sizes =
      Pass{.loader = workload.train.get(), .batch_size = run.config.batch_size}.sizes();
  return sizes.contains(1) ? 1 : 2;
}

std::vector<std::string> try_once(const models::ImportedFile& file, const settings::Resolved& run,
                                  const Workload& workload) {
  const models::Seeded own_numbers(0);  // dropout draws none of the caller's
  const train::Network network = workload.make_network(0);
  const InputSummary& input = file.summary.graphs.front().arguments.front();
  const auto* model = network.module->as<ImportedModelImpl>();
  std::vector<std::string> notes = model == nullptr ? std::vector<std::string>() : model->notes();
  for (const bool trains : {true, false}) {
    const at::AutoGradMode gradients(trains);
    const data::Batch batch =
        with_target(zeros_for(run, input, workload.shape, trains ? least_rows(run, workload) : 2),
                    run, workload.shape);
    network.module->train(trains);
    const at::Tensor output = network.forward(batch);
    if (!settings::has_own_loss(run.config))
      require_output(file.info.name, output, batch.input.size(0), run, workload);
    if (!trains || !workload.train) continue;
    if (const auto names = untrained(network, output, file.info.name); !names.empty())
      notes.push_back("no gradient reaches " + first_few(names) +
                      ": what is trained does not depend on it");
  }
  return notes;
}

}  // namespace

std::vector<std::string> try_network(const models::ImportedFile& file,
                                     const settings::Resolved& run, const Workload& workload) {
  for (const GraphSummary& graph : file.summary.graphs) {
    const InputSummary& input = graph.arguments.front();
    require_examples(file.info.name, input, run, workload.shape);
    require_length(file.info.name, input, run);
    const settings::Config& config = run.config;
    const bool trains = &graph == &file.summary.graphs.front(),
               tests = &graph == &file.summary.graphs.back();
    if (trains)
      require_batches(file.info.name, input,
                      {workload.train.get(), config.batch_size, "--batch-size", "--limit"});
    if (tests)
      require_batches(
          file.info.name, input,
          {workload.test.get(), config.test_batch_size, "--test-batch-size", "--test-limit"});
  }
  return try_once(file, run, workload);
}

}  // namespace demi::workload
