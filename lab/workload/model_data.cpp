#include "lab/workload/model_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "demi/checkpoint/checkpoint.h"
#include "demi/core/error.h"
#include "lab/report/format.h"

namespace demi::workload {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& what, const std::string& seen,
                         const std::string& accepted,
                         std::string_view advice = "name the data that the model is for") {
  throw DataError({.where = "workload.read_data",
                   .what = what,
                   .seen = seen,
                   .accepted = accepted,
                   .advice = advice});
}

std::string numbered(const std::vector<std::string>& classes, std::size_t number) {
  return number < classes.size() ? fmt::format("\"{}\"", classes[number]) : "no class";
}

// The text as a JSON string: it shows characters such as a line's end.
std::string escaped(const std::string& text) { return nlohmann::json(text).dump(); }

std::string form(const DataShape& shape) {
  return fmt::format("{} channel{} of {} x {}", shape.channels, shape.channels == 1 ? "" : "s",
                     shape.size, shape.size);
}

}  // namespace

std::shared_ptr<const ModelData> data_of_model(const ModelTexts& texts, const fs::path& file) {
  const auto& model = texts.description;
  if (!model || model->input.kind == data::Kind::rows) return nullptr;
  return std::make_shared<const ModelData>(ModelData{.file = file.string(),
                                                     .shape = model->shape,
                                                     .classes = model->classes,
                                                     .input = model->input,
                                                     .vocabulary = texts.vocabulary,
                                                     .tokenizer = model->tokenizer,
                                                     .may_have_more_tokens = texts.is_huggingface,
                                                     .identity = model->identity});
}

std::shared_ptr<const ModelData> data_of_checkpoint(const fs::path& path) {
  std::error_code unreadable;
  if (!fs::exists(path, unreadable)) return nullptr;
  try {
    return data_of_model(read_model_texts(path), path);
  } catch (const DataError&) {
    const auto whole = checkpoint::newest_whole(path, [](const fs::path&, const std::string&) {});
    return whole ? data_of_model(read_model_texts(*whole), *whole) : nullptr;
  }
}

void require_same_kind(const ModelData& model, const data::DataSet& data) {
  if (model.input.kind != data.kind)
    refuse(fmt::format("the data {} are not what {} was trained on", data.name, model.file),
           std::string(name_of(data.kind)), std::string(name_of(model.input.kind)));
}

void require_same_data(const ModelData& model, const std::vector<std::string>& classes,
                       const std::string& data, const DataShape& shape) {
  const bool has_classes = !model.classes.empty();  // else its network has its own loss
  const auto [mine, theirs] =
      std::ranges::mismatch(model.classes, has_classes ? classes : model.classes);
  if (has_classes && (mine != model.classes.end() || theirs != classes.end())) {
    const auto number = static_cast<std::size_t>(mine - model.classes.begin());
    const auto side = [number](const std::vector<std::string>& all) {
      return fmt::format("{} classes, number {} is {}", all.size(), number, numbered(all, number));
    };
    refuse(fmt::format("the classes of {} are not those of {}", data, model.file), side(classes),
           side(model.classes));
  }
  if (model.input.kind == data::Kind::pictures &&
      (shape.channels != model.shape.channels || shape.size != model.shape.size))
    refuse(fmt::format("the pictures of {} are not like those that {} was trained on", data,
                       model.file),
           form(shape), form(model.shape));
}

void require_same_words(const ModelData& model, int64_t words) {
  if (words != model.shape.vocabulary)
    refuse("the settings ask for another number of words than the vocabulary of " + model.file +
               " has",
           fmt::format("{} words", words), fmt::to_string(model.shape.vocabulary),
           "leave --vocabulary-size as it was in training");
}

void number_anew(const ModelData& model, data::TextCorpus& corpus, const std::string& data,
                 const std::function<data::TextSet()>& read_test) {
  require_same_data(model, corpus.classes, data, {});
  const data::Vocabulary& words = *model.vocabulary;
  corpus.train = renumbered(std::move(corpus.train), *corpus.vocabulary, words);
  corpus.test = has_all_words(*corpus.vocabulary, words)
                    ? renumbered(std::move(corpus.test), *corpus.vocabulary, words)
                    : read_test();
  corpus.vocabulary = model.vocabulary;
}

void require_same_tokens(const ModelData& model, const tokens::TokenizerTexts& tokenizer,
                         int64_t tokens) {
  if (agree(tokenizer, model.tokenizer) && tokens == model.shape.vocabulary) return;
  const auto side = [](const tokens::TokenizerTexts& one, int64_t count) {
    const bool has_characters = one.merges.empty() && !one.vocabulary.empty();
    return fmt::format("{} tokens, {}{}", count, one.name.empty() ? "of no tokenizer" : one.name,
                       has_characters ? ": " + escaped(one.vocabulary) : "");
  };
  const bool other_pairs = tokenizer.name == model.tokenizer.name &&
                           tokens == model.shape.vocabulary && !tokenizer.merges.empty();
  refuse("the tokens of the data are not those of " + model.file,
         side(tokenizer, tokens) + (other_pairs ? " with other symbols or merges" : ""),
         side(model.tokenizer, model.shape.vocabulary));
}

std::shared_ptr<const tokens::Tokenizer> tokenizer_of_model(const ModelData& model) {
  const auto refuse_file = [&](const std::string& seen, const std::string& accepted) {
    refuse(model.file + ": its tokenizer is damaged", seen, accepted,
           "get an undamaged copy: `demi inspect --verify FILE` checks one");
  };
  std::shared_ptr<const tokens::Tokenizer> made;
  try {
    made = tokens::tokenizer_of(model.tokenizer);
  } catch (const DataError& error) {
    refuse_file(error.what(), "what `demi train` writes");
  }
  const int64_t size = model.shape.vocabulary;
  const bool is_padded = model.may_have_more_tokens && made && made->size() < size;
  if (made && made->size() != size && !is_padded)
    refuse_file(fmt::format("{} tokens", made->size()), fmt::format("{}, as its model", size));
  return made;
}

std::string say_unknown(double share, const ModelData& model) {
  return fmt::format("{} of the words are not among the {} of {}: they count as <unk>",
                     report::format_percent(share), report::format_count(model.shape.vocabulary),
                     model.file);
}

}  // namespace demi::workload
