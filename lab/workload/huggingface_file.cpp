#include "lab/workload/huggingface_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "demi/core/error.h"
#include "lab/huggingface/folder.h"
#include "lab/huggingface/write.h"
#include "lab/models/gpt_model.h"
#include "lab/workload/workload.h"

namespace demi::workload {
namespace {

using models::GPTForm;
using models::GPTOptions;

settings::Config config_of(const GPTOptions& options) {
  settings::Config config;
  config.model = "gpt";
  config.data = "text";
  config.context = options.context;
  config.model_settings = models::gpt_settings(options);
  return config;
}

}  // namespace

ModelTexts texts_of_huggingface(const std::filesystem::path& folder) {
  huggingface::Description read = huggingface::read_description(folder);
  ModelTexts texts{.config = config_of(read.options),
                   .precision = parse_precision("fp32"),
                   .is_huggingface = true,
                   .no_tokenizer = std::move(read.no_tokenizer)};
  texts.description = ModelDescription{.network = texts.config,
                                       .shape = {.vocabulary = read.options.vocabulary},
                                       .input = {.kind = data::Kind::tokens},
                                       .loss = texts.config.loss,
                                       .precision = "fp32",
                                       .tokenizer = std::move(read.tokenizer)};
  return texts;
}

namespace {

void require_language_model(const ModelTexts& texts, const std::filesystem::path& file) {
  if (texts.description && texts.description->input.kind == data::Kind::tokens) return;
  throw UsageError({.where = "export",
                    .what = "the model of " + file.string() + " is no language model",
                    .seen = texts.config.model,
                    .accepted = "gpt, with --block gpt2 or llama"});
}

std::vector<std::string> notes_on(const ModelDescription& model, const GPTOptions& options) {
  std::vector<std::string> notes;
  const std::string& tokenizer = model.tokenizer.name;
  if (!tokenizer.empty() && model.tokenizer.merges.empty())
    notes.push_back("its tokenizer, " + tokenizer +
                    ", has no file there: only byte pairs have one");
  if (options.form == GPTForm::gpt2 && !options.bias)
    notes.emplace_back("it has no biases, and GPT-2 has: they are 0, which is the same function");
  return notes;
}

/// The files of a tokenizer that demi does not read. `source`: empty if the model has no folder.
std::vector<std::string> notes_on_source(const ModelTexts& texts,
                                         const std::filesystem::path& source) {
  if (source.empty() || texts.no_tokenizer.empty()) return {};
  const std::vector<std::string> files = huggingface::tokenizer_files(source);
  if (files.empty()) return {};
  return {fmt::format("copied as they are: {}, since demi does not read the tokenizer: {}",
                      fmt::join(files, ", "), texts.no_tokenizer)};
}

}  // namespace

Exported export_huggingface(const std::filesystem::path& path, const std::filesystem::path& folder,
                            const ExportOptions& options) {
  ModelFile file = read_model_file(path);
  require_language_model(file.texts, path);
  const ModelDescription& model = *file.texts.description;
  const GPTOptions gpt = models::gpt_options(model_options(model.network, model.shape));
  const std::filesystem::path source =
      file.texts.is_huggingface ? *huggingface::folder_of(path) : std::filesystem::path();
  Exported result{.kind = gpt.form == GPTForm::gpt2 ? "GPT-2" : "Llama"};
  for (const auto& [name, tensor] : file.weights) result.parameters += tensor.numel();
  result.files =
      huggingface::write_model(folder, {.options = gpt, .weights = std::move(file.weights)},
                               {.dtype = options.dtype,
                                .shard_bytes = options.shard_bytes,
                                .tokenizer = model.tokenizer,
                                .source = source});
  result.notes = notes_on(model, gpt);
  for (std::string& note : notes_on_source(file.texts, source))
    result.notes.push_back(std::move(note));
  return result;
}

ModelFile read_huggingface(const std::filesystem::path& folder) {
  return {.texts = texts_of_huggingface(folder),
          .weights = huggingface::read_model(folder).weights};
}

}  // namespace demi::workload
