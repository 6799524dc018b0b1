#include "lab/recipes/starting_weights.h"

#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "demi/autocast/to_precision.h"
#include "demi/checkpoint/contents.h"
#include "demi/checkpoint/training_state.h"
#include "demi/core/error.h"
#include "demi/optim/optimizer.h"
#include "demi/tensor/dtype.h"
#include "lab/huggingface/folder.h"
#include "lab/models/registry.h"
#include "lab/workload/model_file.h"
#include "lab/workload/tensor_names.h"
#include "lab/workload/weights_file.h"

namespace demi::recipes {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::NamedTensors;

constexpr auto kFrom = "--from";
constexpr std::string_view kOptimizer = "optimizer/", kAverage = "average/";

[[noreturn]] void refuse_file(const std::string& what, const std::string& seen,
                              const std::string& accepted, const std::string& advice) {
  throw DataError(
      {.where = kFrom, .what = what, .seen = seen, .accepted = accepted, .advice = advice});
}

void take_average(Checkpoint& saved, const fs::path& path) {
  bool any = false;
  for (const auto& [name, tensor] : saved.state) {
    if (!name.starts_with(kAverage)) continue;
    any = true;
    if (const auto found = saved.model.find(name.substr(kAverage.size()));
        found != saved.model.end())
      found->second = tensor;
  }
  if (!any)
    refuse_file("there is no moving average of the weights in " + path.string(), "--from-average",
                "a checkpoint of a run with --ema", "leave out --from-average");
}

void require_finite(const NamedTensors& weights, const fs::path& path) {
  for (const auto& [name, tensor] : weights) {
    if (!tensor.is_floating_point()) continue;
    const at::Tensor values = tensor.element_size() == 1 ? tensor.to(at::kFloat) : tensor;
    if (values.isfinite().all().item<bool>()) continue;
    refuse_file("a weight in " + path.string() + " is NaN or Inf, and training would be", name,
                "finite numbers",
                "name a checkpoint before that: demi inspect --statistics shows what one holds");
  }
}

/// The entries of the state whose parameter has a name in `names`.
void drop_state_of(Checkpoint& saved, const std::string& module, const fs::path& path) {
  const std::vector<std::string> names = workload::parameter_names(saved);
  if (names.empty())
    refuse_file("the optimizer's state in " + path.string() +
                    " is by number, without names, and the head is new",
                "--from-state", "a checkpoint that has the parameters' names",
                "leave out --from-state");
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!names[i].starts_with(module + ".")) continue;
    const std::string prefix = fmt::format("{}{}.", kOptimizer, i);
    std::erase_if(saved.state, [&](const auto& item) { return item.first.starts_with(prefix); });
  }
}

/// Whether an entry of the state is that of a parameter: optimizer/NUMBER.NAME. The others are the
/// run's: its rates, its count of steps, the norms that its guard has seen.
bool is_of_parameter(const std::string& name) {
  if (!name.starts_with(kOptimizer)) return false;
  const std::string_view rest = std::string_view(name).substr(kOptimizer.size());
  const std::size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  return digits > 0 && digits < rest.size() && rest[digits] == '.';
}

/// Keeps the part of the state that a new run lacks: moments and counts of updates.
void keep_moments(Checkpoint& saved, const fs::path& path) {
  std::erase_if(saved.state, [](const auto& item) { return !is_of_parameter(item.first); });
  if (saved.state.empty())
    refuse_file("there is no optimizer's state in " + path.string(), "--from-state",
                "a checkpoint of the same optimizer", "leave out --from-state");
  saved.state[std::string(kOptimizer) + "taken"] = at::scalar_tensor(int64_t{0}, at::kLong);
  std::erase_if(saved.numbers, [](const auto& part) { return part.first != "optimizer"; });
}

/// The option that sets the other config's value, if the two differ: " --depth 2".
std::string difference_in(std::string_view name, const settings::Config& there,
                          const settings::Config& here) {
  const settings::Setting& setting = *settings::find_setting(name);
  const std::string value = setting.get(there);
  if (value == setting.get(here)) return "";
  if (setting.is_flag) return (value == "true" ? " --" : " --no-") + setting.name;
  return " --" + setting.name + " " + value;
}

/// The options that make the network of the file's description.
std::string options_of(const workload::ModelDescription& description,
                       const settings::Config& config) {
  std::string text = difference_in("model", description.network, config);
  if (description.input.kind == data::Kind::rows)
    text += difference_in("in", description.network, config);
  if (description.input.kind == data::Kind::tokens)
    text += difference_in("context", description.network, config);
  if (const models::ModelInfo* model = models::model_named(description.network.model))
    for (const models::ModelSetting& own : model->settings)
      if (own.decides != models::Decides::training)
        text += difference_in(own.setting.name, description.network, config);
  return text;
}

[[noreturn]] void refuse_misfits(const settings::Resolved& run, const workload::Workload& workload,
                                 const workload::NamedForNetwork& named,
                                 const std::optional<workload::ModelDescription>& description,
                                 const fs::path& path) {
  std::string advice = "name the model that they were saved from";
  std::string accepted = "its tensors under its own names";
  if (run.model != nullptr && run.model->torchvision) accepted += ", or torchvision's";
  if (description) {
    const std::string options = options_of(*description, run.config);
    const int64_t there = description->shape.vocabulary, here = workload.shape.vocabulary;
    if (!options.empty())
      advice = "the file's model is that of" + options;
    else if (there != here)
      advice = fmt::format(
          "the file's vocabulary has {} entries, and the run's {}: train on the texts that the "
          "file was trained on{}, or without --from",
          there, here,
          there > here && description->input.kind == data::Kind::tokens
              ? fmt::format(", or, if its vocabulary is padded, on token files with --data tokens "
                            "--vocabulary-size {}",
                            there)
              : "");
  }
  refuse_file(
      fmt::format("the weights in {} do not fit the model {}", path.string(), run.config.model),
      named.unknown.empty() ? workload::first_of(named.misfits)
                            : workload::first_of(named.misfits) + "; the file has " + named.unknown,
      accepted, advice);
}

/// Requires equal settings that no shape shows.
void require_same_form(const workload::ModelDescription& description,
                       const settings::Config& config, const fs::path& path) {
  const models::ModelInfo* const model = models::model_named(description.network.model);
  if (!model) return;
  for (const models::ModelSetting& own : model->settings) {
    if (own.decides != models::Decides::result) continue;
    const std::string there = own.setting.get(description.network.model_settings),
                      here = own.setting.get(config.model_settings);
    if (there == here) continue;
    const std::string option = "--" + own.setting.name + " ";
    refuse_file("the model in " + path.string() + " computes otherwise", option + here,
                option + there, "add " + option + there);
  }
}

/// An embedding's rows would be those of other words.
void require_same_words(const workload::ModelTexts& texts, const workload::Workload& workload,
                        const fs::path& path) {
  if (!texts.vocabulary || !workload.vocabulary) return;
  const auto there = texts.vocabulary->words();
  const auto here =
      workload.vocabulary->words().first(static_cast<std::size_t>(workload.shape.vocabulary));
  const auto [a, b] = std::ranges::mismatch(there, here);
  if (there.size() != here.size() || a == there.end()) return;
  refuse_file("the vocabulary in " + path.string() + " has the size of the data's, and other words",
              fmt::format("word {} is {}", a - there.begin(), *a),
              fmt::format("{}, as in the data", *b),
              "train on the texts that the file was trained on, or without --from");
}

std::string some_of(const std::vector<std::string>& words) {
  constexpr std::size_t kShown = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(words.size(), kShown); ++i)
    text += (i == 0 ? "" : ", ") + words[i];
  return words.size() > kShown ? text + ", ..." : text;
}

std::vector<std::string> differences(const workload::ModelDescription& description,
                                     const workload::Workload& workload, bool new_head) {
  std::vector<std::string> said;
  const auto& there = description.classes;
  const auto& here = workload.classes;
  if (!new_head && there.size() == here.size() && there != here) {
    const auto first =
        static_cast<std::size_t>(std::ranges::mismatch(there, here).in1 - there.begin());
    said.push_back(fmt::format(
        "its classes ({}) are not the data's ({}), as many: class {} was {} and is {} now, and the "
        "head starts with what it learned of the others",
        some_of(there), some_of(here), first, there[first], here[first]));
  }
  const bool has_names = !description.tokenizer.name.empty() && !workload.tokenizer.name.empty();
  if (has_names && !agree(description.tokenizer, workload.tokenizer))
    said.push_back(
        "its tokens mean other texts than the data's, as many: each embedding starts with what it "
        "learned of another token");
  if (description.input.mean != workload.input.mean || description.input.std != workload.input.std)
    said.push_back(fmt::format(
        "its pictures were normalised by mean {} and std {}, and these are by {} and {}",
        fmt::join(description.input.mean, ", "), fmt::join(description.input.std, ", "),
        fmt::join(workload.input.mean, ", "), fmt::join(workload.input.std, ", ")));
  return said;
}

/// "bf16 widened to fp32"; "": none of the weights changes its dtype.
std::string conversion(const NamedTensors& weights, const settings::Resolved& run) {
  const c10::ScalarType to =
      run.spec.precision.is_mixed() ? c10::kFloat : run.spec.precision.weights;
  std::set<std::string> others;
  bool widens = true;
  for (const auto& [name, tensor] : weights) {
    if (!tensor.is_floating_point() || tensor.scalar_type() == to) continue;
    others.insert(tensor::name_of(tensor.scalar_type()));
    widens &= tensor.element_size() < static_cast<int64_t>(c10::elementSize(to));
  }
  if (others.empty()) return "";
  return fmt::format("{} {} to {}", fmt::join(others, " and "), widens ? "widened" : "rounded",
                     tensor::name_of(to));
}

struct Taken {
  std::optional<int64_t> step;
  bool masters = false, average = false, is_huggingface = false;
};

std::string sentence(const settings::Resolved& run, const fs::path& path,
                     const workload::NamedForNetwork& named, const Taken& taken,
                     const std::string& converted) {
  std::string text = fmt::format("starts from {}: ", path.string());
  text += taken.average ? "the moving average" : taken.masters ? "the FP32 masters" : "the weights";
  if (taken.step) text += fmt::format(" of step {}", *taken.step);
  if (named.is_torchvisions) text += ", under torchvision's names";
  if (!named.left_out.empty()) text += ", whose names have " + named.left_out + " besides";
  if (taken.is_huggingface) text += ", under Hugging Face's names";
  if (!converted.empty()) text += ", " + converted;
  if (!named.new_head.empty())
    text += fmt::format("; the head {} is new: {}", named.new_head, named.head_shapes);
  text += run.config.from_state
              ? "; the optimizer's moments too" +
                    std::string(named.new_head.empty() ? "" : ", but for the head's")
              : "; the optimizer's state is new";
  return text;
}

}  // namespace

StartingWeights read_start(const settings::Resolved& run, const workload::Workload& workload,
                           const torch::nn::Module& network, const fs::path& path) {
  const bool is_huggingface = huggingface::folder_of(path).has_value();
  const checkpoint::Contents contents =
      is_huggingface ? checkpoint::Contents() : checkpoint::contents(path);
  std::optional<workload::ModelTexts> texts;
  if (is_huggingface || contents.metadata.contains("demi.file"))
    texts = workload::read_model_texts(path);
  const auto description = texts ? texts->description : std::nullopt;
  Checkpoint saved = is_huggingface ? Checkpoint{.model = workload::read_model_file(path).weights}
                                    : checkpoint::map(path);
  Taken taken{.step = contents.step, .is_huggingface = is_huggingface};
  const bool is_average = contents.is_file && description && description->is_average;
  taken.masters = workload::take_masters(saved);
  taken.average = is_average || run.config.from_average;
  if (run.config.from_average && !is_average) take_average(saved, path);
  workload::NamedForNetwork named = workload::name_for(network, run.model, std::move(saved.model));
  if (!named.misfits.empty()) refuse_misfits(run, workload, named, description, path);
  if (description) require_same_form(*description, run.config, path);
  if (texts) require_same_words(*texts, workload, path);
  require_finite(named.tensors, path);
  std::map<std::string, std::string> own_names(named.renamed.begin(), named.renamed.end());
  for (auto& group : saved.parameters["optimizer"])
    for (std::string& name : group)
      if (const auto own = own_names.find(name); own != own_names.end()) name = own->second;
  if (run.config.from_state) {
    keep_moments(saved, path);
    if (!named.new_head.empty()) drop_state_of(saved, named.new_head, path);
  } else {
    saved.state.clear();
  }
  if (saved.parameters.at("optimizer").empty()) saved.parameters.clear();
  StartingWeights start;
  start.said.push_back(sentence(run, path, named, taken, conversion(named.tensors, run)));
  if (description)
    for (std::string& line : differences(*description, workload, !named.new_head.empty()))
      start.said.push_back(std::move(line));
  saved.model = std::move(named.tensors);
  start.saved = std::move(saved);
  return start;
}

namespace {

void require_same_rule(const Checkpoint& saved, const torch::optim::Optimizer& optimizer) {
  const auto there = saved.text.find("demi.optimizer");
  const auto* own = dynamic_cast<const optim::Optimizer*>(&optimizer);
  if (there == saved.text.end() || own == nullptr || there->second == own->rule_name()) return;
  refuse_file("the optimizer's state is that of another update rule", there->second,
              own->rule_name(),
              "name the optimizer that the run had (--optimizer), or leave out --from-state");
}

bool has_16_bits(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

/// Keeps the file's numbers as the masters of 16-bit weights: they are trained, and not their
/// rounding.
void keep_masters(const NamedTensors& weights, torch::nn::Module& network,
                  torch::optim::Optimizer& optimizer) {
  auto* own = dynamic_cast<optim::Optimizer*>(&optimizer);
  if (own == nullptr || own->weight_mode() == optim::WeightMode::stochastic) return;
  std::set<const at::TensorImpl*> held;
  for (const auto& group : own->param_groups())
    for (const at::Tensor& parameter : group.params()) held.insert(parameter.unsafeGetTensorImpl());
  for (const auto& item : network.named_parameters()) {
    const at::Tensor& parameter = item.value();
    const auto saved = weights.find(item.key());
    if (saved == weights.end() || !has_16_bits(parameter) || has_16_bits(saved->second) ||
        !held.contains(parameter.unsafeGetTensorImpl()) || !own->keeps_state_of(parameter))
      continue;
    auto& state = own->state()[parameter.unsafeGetTensorImpl()];
    if (state) continue;  // with moments, and its master with them
    auto fresh = std::make_unique<optim::ParamState>();
    fresh->master = saved->second.to(parameter.device(), at::kFloat, /*non_blocking=*/false,
                                     /*copy=*/true);
    state = std::move(fresh);
  }
}

}  // namespace

void put(const StartingWeights& start, torch::nn::Module& network,
         torch::optim::Optimizer& optimizer) {
  loop::Job job{.models = {&network}, .random = false};
  if (!start.saved.state.empty()) {
    require_same_rule(start.saved, optimizer);
    job.optimizers = {&optimizer};
  }
  try {
    checkpoint::restore(start.saved, job);
  } catch (const UsageError& error) {
    throw DataError({.where = kFrom,
                     .what = "what was saved does not fit this run",
                     .seen = error.what(),
                     .advice = start.saved.state.empty()
                                   ? "name another precision, or other weights"
                                   : "leave out --from-state"});
  }
  keep_masters(start.saved.model, network, optimizer);
}

std::vector<std::string> check_start(std::span<const settings::Resolved> runs,
                                     const workload::Workload& workload, const fs::path& path) {
  std::vector<std::string> said;
  for (const settings::Resolved& run : runs) {
    const train::Network network = workload.make_network(static_cast<uint64_t>(run.config.seed));
    const auto optimizer = settings::make_optimizer(run, network);
    const Precision& precision = run.spec.precision;
    if (!precision.is_mixed() && precision.weights != c10::kFloat)
      to_precision(*network.module, precision.weights, /*keep_normalisation_fp32=*/false);
    const StartingWeights start = read_start(run, workload, *network.module, path);
    put(start, *network.module, *optimizer);
    for (std::string line : start.said) {
      if (runs.size() > 1 && line == start.said.front()) line = run.spec.label + " " + line;
      if (std::ranges::find(said, line) == said.end()) said.push_back(std::move(line));
    }
  }
  return said;
}

}  // namespace demi::recipes
