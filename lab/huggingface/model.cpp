#include "lab/huggingface/model.h"

#include <ATen/ops/cat.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "demi/tensor/dtype.h"
#include "lab/huggingface/config.h"
#include "lab/huggingface/folder.h"
#include "lab/huggingface/json_file.h"
#include "lab/huggingface/names.h"
#include "lab/tokens/byte_pair.h"

namespace demi::huggingface {
namespace {

namespace fs = std::filesystem;
using checkpoint::NamedTensors;
using models::GPTOptions;

std::string text_of(const std::vector<int64_t>& shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

/// Gives the tensors of a file by transformers' names, and keeps what does not fit.
class Source {
 public:
  Source(NamedTensors tensors, const GPTOptions& options)
      : tensors_(without_wrappers(std::move(tensors))),
        prefix_(prefix_in(tensors_, options.form)) {}

  /// Undefined if it does not fit.
  at::Tensor take(const std::string& name, const std::vector<int64_t>& shape) {
    const std::string full = name == kHead ? name : prefix_ + name;
    auto found = tensors_.extract(full);
    if (!found) return misfit(full + " is missing");
    const at::Tensor tensor = std::move(found.mapped());
    const c10::ScalarType dtype = tensor.scalar_type();
    if (tensor.sizes() != shape)
      return misfit(
          fmt::format("{} {} for {}", found.key(), text_of(tensor.sizes().vec()), text_of(shape)));
    if (dtype != c10::kFloat && dtype != c10::kHalf && dtype != c10::kBFloat16 &&
        dtype != c10::kDouble)
      return misfit(fmt::format("{} of {}", found.key(), tensor::name_of(dtype)));
    return tensor;
  }

  /// A head that is also in the file of a tied model.
  at::Tensor take_head() {
    auto found = tensors_.extract(std::string(kHead));
    return found ? std::move(found.mapped()) : at::Tensor();
  }

  /// The misfits, with the tensors that are left.
  std::vector<std::string> misfits() && {
    for (const auto& [name, tensor] : tensors_)
      if (!is_buffer(name)) misfits_.push_back(name + " is of no part of the model");
    return std::move(misfits_);
  }

 private:
  /// The tensors without the prefixes of torch.compile and DataParallel.
  static NamedTensors without_wrappers(NamedTensors tensors) {
    NamedTensors plain;
    for (auto& [name, tensor] : tensors) {
      std::string rest = name;
      for (const std::string_view wrapper : {"module.", "_orig_mod.", "module."})
        if (rest.starts_with(wrapper)) rest.erase(0, wrapper.size());
      plain.emplace(std::move(rest), tensor);
    }
    return plain.size() == tensors.size() ? plain : tensors;
  }

  static std::string prefix_in(const NamedTensors& tensors, models::GPTForm form) {
    const std::string_view prefix = prefix_of(form);
    const bool has = std::ranges::any_of(
        tensors, [&](const auto& item) { return item.first.starts_with(prefix); });
    return has ? std::string(prefix) : "";
  }

  at::Tensor misfit(std::string what) {
    misfits_.push_back(std::move(what));
    return {};
  }

  NamedTensors tensors_;
  std::string prefix_;
  std::vector<std::string> misfits_;
};

at::Tensor tensor_of(const TensorNames& names, Source& source) {
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < names.theirs.size(); ++i) {
    at::Tensor part = source.take(names.theirs[i], names.shape_of_theirs(i));
    if (part.defined()) parts.push_back(names.is_transposed ? part.t().contiguous() : part);
  }
  if (parts.size() < names.theirs.size()) return {};
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

std::string first_of(const std::vector<std::string>& misfits) {
  constexpr std::size_t kShown = 3;
  const auto end = misfits.begin() + std::min<std::ptrdiff_t>(kShown, std::ssize(misfits));
  std::string text = fmt::format("{}", fmt::join(misfits.begin(), end, "; "));
  if (misfits.size() > kShown) text += fmt::format("; and {} more", misfits.size() - kShown);
  // The rest of the file comes last: it shows whose names these are.
  if (misfits.size() > kShown && misfits.back().ends_with("is of no part of the model"))
    text += ", as " + misfits.back();
  return text;
}

// Meta's own files have other names, and rotary pairs in another order.
void require_fit(const fs::path& folder, const std::vector<std::string>& misfits) {
  if (misfits.empty()) return;
  const bool is_metas = std::ranges::any_of(
      misfits, [](const auto& one) { return one.find("attention.wq") != std::string::npos; });
  Wrong{folder}("the tensors are not those of the model that its config.json describes",
                first_of(misfits), "each tensor of the model once, in fp64, fp32, fp16 or bf16",
                is_metas ? "these are Meta's names: transformers' convert_llama_weights_to_hf.py "
                           "makes a folder of such files"
                         : "");
}

void require_tied(const fs::path& folder, const at::Tensor& head, const at::Tensor& embedding) {
  if (!head.defined() || !embedding.defined()) return;
  if (head.sizes() == embedding.sizes() && head.scalar_type() == embedding.scalar_type() &&
      head.equal(embedding))
    return;
  Wrong{folder}("config.json says that the head is the embedding, and they differ",
                std::string(kHead), "tie_word_embeddings false, or no such tensor");
}

}  // namespace

Description read_description(const fs::path& folder) {
  require_no_adapter(folder);
  Description description{.options = read_config(folder / "config.json")};
  const bool has_one = fs::exists(folder / "tokenizer.json");
  if (!has_one && !fs::exists(folder / "vocab.json")) {
    description.no_tokenizer = "no tokenizer.json, and no vocab.json with merges.txt";
    return description;
  }
  try {
    const auto made = tokens::byte_pair_tokenizer(tokens::read_byte_pairs(folder));
    if (made->size() > description.options.vocabulary)
      Wrong{folder}("the tokenizer has more tokens than the model", fmt::to_string(made->size()),
                    fmt::to_string(description.options.vocabulary));
    description.tokenizer = made->texts();
  } catch (const DataError& error) {
    description.no_tokenizer = error.what();
  }
  return description;
}

Model read_model(const fs::path& folder) {
  require_no_adapter(folder);
  Model model{.options = read_config(folder / "config.json")};
  Source source(read_tensors(folder), model.options);
  for (const TensorNames& names : tensor_names(model.options)) {
    at::Tensor tensor = tensor_of(names, source);
    if (tensor.defined()) model.weights[names.own] = std::move(tensor);
  }
  if (!model.weights.contains("head.weight") &&
      model.options.tied_head.value_or(model.options.form == models::GPTForm::gpt2))
    require_tied(folder, source.take_head(), model.weights["tokens.weight"]);
  require_fit(folder, std::move(source).misfits());
  return model;
}

}  // namespace demi::huggingface
