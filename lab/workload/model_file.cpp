#include "lab/workload/model_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "demi/checkpoint/checkpoint.h"
#include "demi/checkpoint/contents.h"
#include "demi/core/error.h"
#include "demi/core/json.h"
#include "demi/core/json_value.h"
#include "lab/huggingface/folder.h"
#include "lab/models/imported.h"
#include "lab/models/registry.h"
#include "lab/settings/config_source.h"
#include "lab/settings/resolved.h"
#include "lab/values/setting.h"
#include "lab/workload/huggingface_file.h"
#include "lab/workload/network_place.h"
#include "lab/workload/weights_file.h"

namespace demi::workload {
namespace {

using Json = nlohmann::ordered_json;
using Value = JsonValue<nlohmann::json>;
using data::Kind;

constexpr auto kReadModelFile = "workload.read_model_file";
constexpr auto kTokenizer = "basic_english";
constexpr auto kVocabulary = "demi.vocabulary", kMerges = "demi.merges";
constexpr int64_t kTokenizerVersion = 1;
constexpr auto kScaled = "shorter-side-256/224", kAsItIs = "none", kMiddle = "middle";

Json input_json(const ModelDescription& model) {
  const InputRule& input = model.input;
  Json json{{"kind", name_of(input.kind)}};
  if (input.kind == Kind::rows) json["in"] = model.network.in;
  if (input.kind == Kind::pictures) {
    json["channels"] = model.shape.channels;
    json["size"] = model.shape.size;
    json["mean"] = input.mean;
    json["std"] = input.std;
    json["resize"] = input.from_photographs ? kScaled : kAsItIs;
    json["crop"] = input.from_photographs ? kMiddle : kAsItIs;
  }
  if (input.kind == Kind::tokens) {
    json["tokenizer"] = model.tokenizer.name;
    json["tokens"] = model.shape.vocabulary;
  }
  if (input.kind == Kind::texts) {
    json["tokenizer"] = kTokenizer;
    json["tokenizer_version"] = kTokenizerVersion;
    json["words"] = model.shape.vocabulary;
    json["max_length"] = input.max_length;
  }
  return json;
}

// The value of a model's own setting: a number, a text, true or false.
Json json_of(const values::Setting<values::Texts>& setting, const values::Texts& texts) {
  const std::string text = setting.get(texts);
  if (setting.type == "TEXT") return text;
  if (setting.type == "FLOAT")
    return values::parse_real(text, setting.name, -values::kInfinity, values::kInfinity);
  return read_ordered_json(text);
}

// The settings that shape the network, besides its data.
Json network_json(const ModelDescription& model) {
  const settings::Config& config = model.network;
  Json json{{"name", config.model}};
  if (models::is_network_file(config.model)) {  // which is beside its weights, or is named
    json["name"] = std::filesystem::path(config.model).filename().string();
    json["output"] = config.model_output;
    if (!model.identity.empty()) json["identity"] = model.identity;
    return json;
  }
  if (model.input.kind == Kind::rows) {
    json["in"] = config.in;
    json["out"] = config.out;
  }
  if (model.input.kind == Kind::tokens) json["context"] = config.context;
  if (const models::ModelInfo* const info = models::model_named(config.model))
    for (const models::ModelSetting& own : info->settings)
      json[own.key] = json_of(own.setting, config.model_settings);
  return json;
}

Json to_json(const ModelDescription& model) {
  return {{"network", network_json(model)}, {"classes", model.classes},
          {"input", input_json(model)},     {"loss", model.loss},
          {"precision", model.precision},   {"average", model.is_average}};
}

InputRule input_of(const Value& json, ModelDescription& model) {
  InputRule input;
  const auto kind = json.at("kind").get<std::string>();
  if (kind == name_of(Kind::pictures)) {
    input.kind = Kind::pictures;
    json.at("channels").get_to(model.shape.channels);
    json.at("size").get_to(model.shape.size);
    json.at("mean").get_to(input.mean);
    json.at("std").get_to(input.std);
    input.from_photographs = json.at("resize").get<std::string>() == kScaled;
  } else if (kind == name_of(Kind::texts)) {
    input.kind = Kind::texts;
    json.at("words").get_to(model.shape.vocabulary);
    json.at("max_length").get_to(input.max_length);
  } else if (kind == name_of(Kind::tokens)) {
    input.kind = Kind::tokens;
    json.at("tokens").get_to(model.shape.vocabulary);
    json.at("tokenizer").get_to(model.tokenizer.name);
  }
  return input;
}

// The setting's value as text. Files that are older than the setting have its default.
std::string text_of(const Value& network, const models::ModelSetting& own) {
  const Json absent = json_of(own.setting, {});
  if (own.setting.is_flag) return network.value(own.key, absent.get<bool>()) ? "true" : "false";
  if (own.setting.type == "INT")
    return fmt::to_string(network.value(own.key, absent.get<int64_t>()));
  if (own.setting.type == "FLOAT")
    return values::to_text(network.value(own.key, absent.get<double>()));
  return network.value(own.key, absent.get<std::string>());
}

// Reads the settings of the model that the config names. Throws JsonError for a value that no run
// has.
void read_own_settings(const Value& network, settings::Config& config) {
  for (const models::ModelSetting& own : models::find_model(config.model).settings) {
    const std::string text = text_of(network, own);
    try {
      own.setting.set(config.model_settings, text, "network." + own.key);
    } catch (const UsageError& error) {
      throw JsonError(error.what());
    }
  }
}

ModelDescription description_of(const Value& json) {
  ModelDescription model;
  json.at("classes").get_to(model.classes);
  model.shape.classes = static_cast<int64_t>(model.classes.size());
  model.input = input_of(json.at("input"), model);
  const Value network = json.at("network");
  settings::Config& config = model.network;
  network.at("name").get_to(config.model);
  config.model_output = network.value("output", config.model_output);
  model.identity = network.value("identity", model.identity);
  config.in = network.value("in", config.in);
  config.out = network.value("out", config.out);
  config.context = network.value("context", config.context);
  if (!models::is_network_file(config.model)) read_own_settings(network, config);
  json.at("loss").get_to(model.loss);
  json.at("precision").get_to(model.precision);
  json.at("average").get_to(model.is_average);
  return model;
}

/// Throws errors about the texts of one file.
struct Refusal {
  const std::filesystem::path& path;

  [[noreturn]] void operator()(const std::string& what, const std::string& seen,
                               std::string_view accepted,
                               std::string_view advice =
                                   "get an undamaged copy: `demi inspect "
                                   "--verify FILE` checks one") const {
    throw DataError({.where = kReadModelFile,
                     .what = path.string() + ": " + what,
                     .seen = seen,
                     .accepted = accepted,
                     .advice = advice});
  }
};

void require_version(const Refusal& refuse, const std::string& text) {
  int64_t version = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), version);
  if (code != std::errc() || end != text.data() + text.size() || version < 1)
    refuse("its demi.file is no version", text, "1");
  if (version > kModelFileVersion)
    refuse("a newer demi wrote it", fmt::format("version {}", version),
           fmt::format("at most {}", kModelFileVersion), "update demi, or use that one");
}

void require_tokenizer(const Refusal& refuse, const Value& input) {
  if (input.value("kind", std::string()) != name_of(Kind::texts)) return;
  const auto name = input.value("tokenizer", std::string());
  const auto version = input.value("tokenizer_version", int64_t{0});
  if (name != kTokenizer || version != kTokenizerVersion)
    refuse("it was trained on another tokenizer's words", fmt::format("{} {}", name, version),
           fmt::format("{} {}", kTokenizer, kTokenizerVersion), "update demi");
}

/// Refuses sizes that no run may have, which would be allocated, and a std without its mean, which
/// would leave pictures half normalised.
void require_pictures(const Refusal& refuse, const ModelDescription& model) {
  constexpr int64_t kMost = 1 << 15;  // --image-size
  if (model.input.kind != Kind::pictures) return;
  const auto& [channels, size] = std::pair(model.shape.channels, model.shape.size);
  if (channels < 1 || channels > kMost || size < 1 || size > kMost)
    refuse("its demi.model has pictures of a size that no run has",
           fmt::format("{} channels of {} x {}", channels, size, size),
           fmt::format("1 to {} each", kMost));
  if (model.input.mean.size() != model.input.std.size())
    refuse("its demi.model has a mean without a std, or the other way round",
           fmt::format("{} and {} values", model.input.mean.size(), model.input.std.size()),
           "as many of both");
}

std::vector<std::string> words_of_vocabulary(std::string_view text) {
  std::vector<std::string> words;
  words.reserve(static_cast<std::size_t>(std::ranges::count(text, ' ')) + 1);
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find(' ', start), text.size());
    words.emplace_back(text.substr(start, end - start));
    start = end + 1;
  }
  return words;
}

std::shared_ptr<const data::Vocabulary> vocabulary_of(const Refusal& refuse, std::string_view text,
                                                      const ModelDescription& model) {
  std::vector<std::string> words = words_of_vocabulary(text);
  if (std::ssize(words) != model.shape.vocabulary)
    refuse("its vocabulary has not the size that its model was made for",
           fmt::format("{} words", words.size()), fmt::to_string(model.shape.vocabulary));
  try {
    return std::make_shared<const data::Vocabulary>(std::move(words));
  } catch (const DataError& error) {
    refuse("its vocabulary is damaged", error.what(), "distinct words, the first <unk>");
  }
}

const std::string& text_of(const Refusal& refuse, const checkpoint::Metadata& metadata,
                           const char* name) {
  const auto found = metadata.find(name);
  if (found == metadata.end()) refuse("a text is missing", "no entry of that name", name);
  return found->second;
}

// Files of older versions have the name of byte pairs alone.
void read_tokenizer(const Refusal& refuse, const checkpoint::Metadata& metadata,
                    tokens::TokenizerTexts& tokenizer) {
  const bool is_characters = tokenizer.name == "characters";
  const bool has_pairs = metadata.contains(kMerges);
  if (is_characters || has_pairs) tokenizer.vocabulary = text_of(refuse, metadata, kVocabulary);
  if (has_pairs) tokenizer.merges = metadata.at(kMerges);
}

void read_description(const Refusal& refuse, const checkpoint::Metadata& metadata,
                      ModelTexts& texts) {
  const auto version = metadata.find("demi.file");
  if (version == metadata.end()) return;
  require_version(refuse, version->second);
  try {
    const nlohmann::json document = read_json(text_of(refuse, metadata, "demi.model"));
    const Value json(document);
    require_tokenizer(refuse, json.at("input"));
    texts.description = description_of(json);
    require_pictures(refuse, *texts.description);
    const std::string& name = texts.description->network.model;
    if (!models::is_network_file(name)) models::find_model(name);
  } catch (const JsonError& error) {
    refuse("its demi.model is damaged", error.what(), "a JSON object");
  } catch (const UsageError& error) {
    refuse("this demi does not know its model", error.what(), "a model of `demi train --help`",
           "update demi");
  }
  if (tokens::TokenizerTexts& tokenizer = texts.description->tokenizer; !tokenizer.name.empty())
    read_tokenizer(refuse, metadata, tokenizer);
  if (texts.description->input.kind == Kind::texts)
    texts.vocabulary =
        vocabulary_of(refuse, text_of(refuse, metadata, kVocabulary), *texts.description);
}

/// Requires that both texts describe the same network; in a file that was edited they may differ.
void require_same_network(const Refusal& refuse, const std::string& said,
                          const ModelDescription& model, const settings::Config& run) {
  const nlohmann::json document = read_json(said);
  ModelDescription of_run = model;
  of_run.network = run;
  const Json expected = network_json(of_run);
  const nlohmann::json& network = document.at("network");
  for (const auto& [key, value] : expected.items()) {
    const auto found = network.find(key);
    if (found != network.end() && *found != nlohmann::json(value))
      refuse("its demi.model and its demi.config differ in the network's " + key,
             fmt::format("{} and {}", found->dump(), value.dump()), "the same in both");
  }
}

std::string joined(std::span<const std::string> words) {
  std::size_t bytes = 0;
  for (const std::string& word : words) bytes += word.size() + 1;
  std::string text;
  text.reserve(bytes);
  for (const std::string& word : words) (text += text.empty() ? "" : " ") += word;
  return text;
}

}  // namespace

checkpoint::Metadata model_texts(const ModelDescription& model,
                                 const data::Vocabulary* vocabulary) {
  checkpoint::Metadata texts{{"demi.file", fmt::to_string(kModelFileVersion)}};
  try {
    texts["demi.model"] = to_json(model).dump();
  } catch (const nlohmann::json::type_error& error) {
    throw DataError({.where = "workload.model_texts",
                     .what =
                         "the name of a class is not UTF-8, and the model's file could not hold "
                         "it",
                     .seen = error.what(),
                     .accepted = "UTF-8",
                     .advice = "write the labels in UTF-8 (iconv -t UTF-8)"});
  }
  if (!model.tokenizer.vocabulary.empty()) texts[kVocabulary] = model.tokenizer.vocabulary;
  if (!model.tokenizer.merges.empty()) texts[kMerges] = model.tokenizer.merges;
  if (vocabulary != nullptr)
    texts[kVocabulary] = joined(vocabulary->words().first(
        static_cast<std::size_t>(std::min(model.shape.vocabulary, vocabulary->size()))));
  return texts;
}

checkpoint::Metadata model_texts(const settings::Resolved& run, const Workload& workload,
                                 bool is_average) {
  return model_texts({.network = run.config,
                      .shape = workload.shape,
                      .classes = workload.classes,
                      .input = workload.input,
                      .loss = run.config.loss,
                      .precision = std::string(run.spec.precision.name),
                      .is_average = is_average,
                      .tokenizer = workload.tokenizer,
                      .identity = network_identity(run.config)},
                     workload.vocabulary.get());
}

ModelTexts read_model_texts(const std::filesystem::path& path) {
  if (const auto folder = huggingface::folder_of(path)) return texts_of_huggingface(*folder);
  const checkpoint::Contents contents = checkpoint::contents(path);
  const Refusal refuse{path};
  ModelTexts texts;
  read_description(refuse, contents.metadata, texts);
  WeightsInfo run = weights_info(contents.metadata, contents.path, !contents.is_file);
  texts.config = std::move(run.config);
  if (texts.description)
    require_same_network(refuse, contents.metadata.at("demi.model"), *texts.description,
                         texts.config);
  texts.precision = run.precision;
  texts.steps = run.steps;
  return texts;
}

ModelFile read_model_file(const std::filesystem::path& path) {
  if (const auto folder = huggingface::folder_of(path)) return read_huggingface(*folder);
  ModelFile file;
  checkpoint::read_current(path, [&](const std::filesystem::path& one) {
    file.texts = read_model_texts(one);
    file.weights = read_weights(one);
  });
  return file;
}

}  // namespace demi::workload
