#include "lab/predict/text_numbers.h"

#include <fmt/format.h>

#include "demi/core/error.h"
#include "lab/data/tokenizer.h"

namespace demi::predict {
namespace {

std::string not_utf8(const Input& input) {
  const std::size_t bad = data::BasicEnglish()(input.name, [](std::string_view) {});
  if (bad == data::BasicEnglish::npos) return "";
  return fmt::format("{}{}not UTF-8: byte 0x{:02x} at offset {} (iconv -t UTF-8 converts it)",
                     input.place, input.place.empty() ? "" : ": ",
                     static_cast<unsigned char>(input.name[bad]), bad);
}

std::vector<data::TextSource> without_errors(std::span<const Input> inputs,
                                             const std::vector<Prediction>& predictions) {
  std::vector<data::TextSource> sources;
  for (const Prediction& one : predictions)
    if (one.error.empty())
      sources.push_back({.read = [&text = inputs[one.input].name] { return text; },
                         .label = static_cast<int64_t>(one.input),
                         .place = inputs[one.input].place});
  return sources;
}

}  // namespace

data::TextSet number_texts(std::span<const Input> inputs, const data::Vocabulary& vocabulary,
                           std::vector<Prediction>& predictions) {
  for (std::size_t i = 0; i < inputs.size(); ++i)
    predictions[i] = {.input = i, .error = inputs[i].error};
  try {
    return data::tokenize(without_errors(inputs, predictions), vocabulary, "texts");
  } catch (const DataError&) {  // one of them is not UTF-8, which is rare
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (predictions[i].error.empty()) predictions[i].error = not_utf8(inputs[i]);
    return data::tokenize(without_errors(inputs, predictions), vocabulary, "texts");
  }
}

}  // namespace demi::predict
