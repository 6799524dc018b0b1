#include <fmt/format.h>

#include <charconv>
#include <memory>

#include "demi/core/error.h"
#include "lab/generate/generate.h"
#include "lab/workload/model_data.h"
#include "lab/workload/model_file.h"
#include "lab/workload/saved_network.h"

namespace demi::generate {
namespace {

namespace fs = std::filesystem;

void require_language_model(const workload::ModelTexts& texts, const fs::path& file) {
  if (texts.description && texts.description->input.kind == data::Kind::tokens) return;
  const std::string reads =
      texts.description ? std::string(name_of(texts.description->input.kind)) : "";
  const bool can_predict = !reads.empty() && reads != "rows";
  throw UsageError({.where = "generate",
                    .what = fmt::format("the model of {} writes no texts", file.string()),
                    .seen = texts.config.model + (reads.empty() ? "" : ", which reads " + reads),
                    .accepted = "a language model: gpt",
                    .advice = can_predict ? "`demi predict` gives the classes of what it reads"
                                          : "train one: demi train gpt-shakespeare"});
}

[[noreturn]] void refuse_token(std::size_t index, std::string_view seen, int64_t vocabulary) {
  throw UsageError({.where = "--prompt-tokens",
                    .what = fmt::format("number {} is no token of the model", index),
                    .seen = seen,
                    .accepted = fmt::format("0 to {}", vocabulary - 1)});
}

}  // namespace

Model load_model(const fs::path& path, std::string_view precision, std::string_view device) {
  const workload::ModelFile file = workload::read_model_file(path);
  require_language_model(file.texts, path);
  Model model{.run = workload::resolve_saved(file.texts.config, precision, device),
              .tokenizer = workload::tokenizer_of_model(*workload::data_of_model(file.texts, path)),
              .no_tokenizer = file.texts.no_tokenizer};
  const train::Network network = workload::saved_network(
      model.run,
      workload::make_network(model.run.config, file.texts.description->shape, 0, model.run.device),
      file.weights, file.texts.steps);
  model.network = models::GPT(std::dynamic_pointer_cast<models::GPTImpl>(network.module));
  model.network->eval();
  return model;
}

std::vector<int32_t> tokens_of(const Model& model, std::string_view text) {
  if (!model.tokenizer)
    throw UsageError({.where = "--prompt",
                      .what = "the model's file has no tokenizer, so a text has no numbers",
                      .seen = !model.no_tokenizer.empty() ? std::string_view(model.no_tokenizer)
                              : text.empty()              ? "no prompt"
                                                          : "a text",
                      .accepted = "--prompt-tokens 464,3290: numbers of tokens",
                      .advice = model.no_tokenizer.empty()
                                    ? "a file of a run on texts (--train-file) has one"
                                    : ""});
  return model.tokenizer->encode(text.empty() ? "\n" : text);
}

std::vector<int32_t> parse_tokens(const Model& model, std::string_view numbers) {
  constexpr std::string_view kBetween = ", \t\r\n";
  std::vector<int32_t> tokens;
  for (std::size_t at = numbers.find_first_not_of(kBetween); at != std::string_view::npos;) {
    const std::size_t end = std::min(numbers.find_first_of(kBetween, at), numbers.size());
    const std::string_view word = numbers.substr(at, end - at);
    int64_t token = 0;
    const auto [stop, code] = std::from_chars(word.data(), word.data() + word.size(), token);
    if (code != std::errc() || stop != word.data() + word.size() || token < 0 ||
        token >= model.vocabulary())
      refuse_token(tokens.size(), word, model.vocabulary());
    tokens.push_back(static_cast<int32_t>(token));
    at = numbers.find_first_not_of(kBetween, end);
  }
  if (tokens.empty())
    throw UsageError({.where = "--prompt-tokens",
                      .what = "no numbers",
                      .seen = "nothing",
                      .accepted = "one or more, as 464,3290"});
  return tokens;
}

}  // namespace demi::generate
