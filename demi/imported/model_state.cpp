#include "demi/imported/model_state.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "demi/autocast/normalisation.h"
#include "demi/core/error.h"

namespace demi::imported {
namespace {

constexpr std::size_t kDeepestName = 64;

/// A module of Python's, which holds its parameters and buffers; the operations are the graph's.
class PartImpl : public torch::nn::Module {
 public:
  PartImpl() : torch::nn::Module("ImportedPart") {}
};

class NormalisationPartImpl : public PartImpl, public Normalisation {};

std::shared_ptr<torch::nn::Module> make_part(bool is_normalisation) {
  if (is_normalisation) return std::make_shared<NormalisationPartImpl>();
  return std::make_shared<PartImpl>();
}

[[noreturn]] void refuse_state(const Archive& archive, const std::string& what,
                               const std::string& seen, const std::string& accepted) {
  refuse<DataError>({.where = "imported.read",
                     .what = archive.path().string() + ": " + what,
                     .seen = seen,
                     .accepted = accepted,
                     .advice = "export it again, from a network of such parameters"});
}

std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts(1);
  for (const char c : name) {
    if (c == '.')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

/// A name is a path of modules: no part is empty, and none is both a module and a tensor.
void check_names(const Archive& archive, const std::vector<StateTensor>& state) {
  std::map<std::string, bool> is_tensor;
  for (const StateTensor& one : state) {
    if (one.kind != StateKind::parameter && one.kind != StateKind::buffer) continue;
    const std::vector<std::string> parts = parts_of(one.name);
    const bool has_empty = std::ranges::find(parts, "") != parts.end();
    if (has_empty || parts.size() > kDeepestName)
      refuse_state(archive, "a parameter's name is no path of modules", one.name,
                   "block.conv.weight");
    std::string path;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      path += (i == 0 ? "" : ".") + parts[i];
      const bool is_last = i + 1 == parts.size();
      const auto [known, is_new] = is_tensor.emplace(path, is_last);
      if (!is_new && (is_last || known->second))
        refuse_state(archive, "two things of the network have one name", path,
                     "names of their own");
    }
  }
}

/// Requires tensors that share a record to be one tensor, or to be apart in it (weights of an LSTM
/// on a GPU).
void check_overlaps(const Archive& archive, const StoredTensors& weights) {
  std::map<std::string, std::vector<std::pair<std::string, const StoredTensor*>>> by_record;
  for (const auto& [name, stored] : weights) by_record[stored.record].emplace_back(name, &stored);
  for (auto& [record, all] : by_record) {
    std::ranges::sort(all, {}, [](const auto& one) { return first_byte(*one.second); });
    for (std::size_t i = 1; i < all.size(); ++i) {
      const StoredTensor &before = *all[i - 1].second, &after = *all[i].second;
      if (!same_tensor(before, after) && first_byte(after) < end_byte(before))
        refuse_state(archive, "two parameters are different views of one storage",
                     all[i - 1].first + " and " + all[i].first,
                     "tensors of their own, or one tensor under two names");
    }
  }
}

class StateReader {
 public:
  explicit StateReader(const Archive& archive) : archive_(archive), tensors_(archive.tensors()) {}

  void add(const std::string& key, StateKind kind, const StoredTensor& stored) {
    if (!known_.emplace(key, true).second) return;
    at::Tensor& tensor = made_[stored.record + fmt::format("@{}", place(stored))];
    if (!tensor.defined()) tensor = own(tensors_.read(stored));
    const bool is_trainable = kind == StateKind::parameter && stored.meta.requires_grad;
    if (is_trainable && !tensor.is_floating_point() && !tensor.is_complex())
      refuse_state(archive_, "a parameter to be trained holds integers", key, "real numbers");
    state.push_back({.kind = kind, .name = key, .tensor = tensor, .is_trainable = is_trainable});
  }

  std::vector<StateTensor> state;

 private:
  static std::string place(const StoredTensor& stored) {
    std::string text =
        fmt::format("{} {}", static_cast<int>(stored.meta.dtype), stored.meta.offset.fixed);
    for (const Extent& size : stored.meta.sizes) text += fmt::format(" {}", size.fixed);
    for (const Extent& stride : stored.meta.strides) text += fmt::format(",{}", stride.fixed);
    return text;
  }

  /// The tensor in memory of its own, not in the storage that it was a part of.
  static at::Tensor own(at::Tensor tensor) {
    return tensor.storage().nbytes() == tensor.nbytes() ? tensor : tensor.clone();
  }

  const Archive& archive_;
  TensorReader tensors_;
  std::map<std::string, bool> known_;
  std::map<std::string, at::Tensor> made_;
};

std::string key_of(const Program& program, const InputSpec& input) {
  return input.kind == InputKind::constant ? program.name + ": " + input.target : input.target;
}

bool is_state(const InputSpec& input) {
  return input.kind == InputKind::parameter || input.kind == InputKind::buffer ||
         input.kind == InputKind::constant;
}

}  // namespace

std::vector<StateTensor> read_state(const Archive& archive,
                                    const std::vector<const Program*>& programs) {
  StateReader reader(archive);
  for (const Program* program : programs) {
    const StoredTensors& weights = archive.weights(program->name);
    check_overlaps(archive, weights);
    for (const InputSpec& input : program->inputs) {
      if (!is_state(input)) continue;
      const bool is_hidden = input.kind == InputKind::constant ||
                             (input.kind == InputKind::buffer && !input.persistent);
      const StateKind kind = input.kind == InputKind::parameter  ? StateKind::parameter
                             : input.kind == InputKind::constant ? StateKind::constant
                             : is_hidden                         ? StateKind::hidden_buffer
                                                                 : StateKind::buffer;
      reader.add(key_of(*program, input), kind,
                 (is_hidden ? archive.constants(program->name) : weights).at(input.target));
    }
    for (const auto& [name, stored] : weights)
      reader.add(name, stored.is_parameter ? StateKind::parameter : StateKind::buffer, stored);
  }
  check_names(archive, reader.state);
  return std::move(reader.state);
}

std::ptrdiff_t find_state(const std::vector<StateTensor>& state, const Program& program,
                          const InputSpec& input) {
  if (!is_state(input)) return -1;
  const auto found = std::ranges::find(state, key_of(program, input), &StateTensor::name);
  return found == state.end() ? -1 : found - state.begin();
}

void register_state(torch::nn::Module& module, const std::vector<StateTensor>& state,
                    const std::set<std::string>& normalisations) {
  for (const StateTensor& one : state) {
    if (one.kind != StateKind::parameter && one.kind != StateKind::buffer) continue;
    const std::vector<std::string> parts = parts_of(one.name);
    torch::nn::Module* owner = &module;
    std::string path;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      path += (i == 0 ? "" : ".") + parts[i];
      const auto children = owner->named_children();
      const auto* child = children.find(parts[i]);
      owner =
          child != nullptr
              ? child->get()
              : owner->register_module(parts[i], make_part(normalisations.contains(path))).get();
    }
    if (one.kind == StateKind::parameter)
      owner->register_parameter(parts.back(), one.tensor, one.is_trainable);
    else
      owner->register_buffer(parts.back(), one.tensor);
  }
}

std::vector<StateTensor> copy_state(const std::vector<StateTensor>& state,
                                    const std::optional<c10::Device>& device) {
  const at::NoGradGuard no_grad;
  std::map<const at::TensorImpl*, at::Tensor> copies;
  std::vector<StateTensor> copied;
  for (const StateTensor& one : state) {
    at::Tensor& copy = copies[one.tensor.unsafeGetTensorImpl()];
    const bool moves = device && one.tensor.device() != *device;
    if (!copy.defined()) copy = moves ? one.tensor.to(*device) : one.tensor.clone();
    copied.push_back(one);
    copied.back().tensor = copy;
    copied.back().is_trainable = one.tensor.requires_grad();
  }
  return copied;
}

}  // namespace demi::imported
