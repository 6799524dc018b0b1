#include "cli/number_block.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "lab/number/block.h"
#include "lab/number/explanation.h"

namespace demi::cli {
namespace {

// The value as FP32, rounded once where its exact value is known.
float fp32_of(const std::string& text) {
  const number::Expression expression(text);
  const Format& fp32 = format_of(Dtype::fp32);
  const auto exact = expression.exact_value();
  const number::Bits bits = exact ? number::round_to(fp32, *exact) : expression.evaluate(fp32).bits;
  return static_cast<float>(number::double_of(fp32, bits));
}

number::Block block_of(const BlockOfNumbers& asked) {
  const number::BlockForm& form = number::parse_block_form(asked.form);
  const Format& format = asked.format ? *asked.format : format_of(form.formats.front());
  std::vector<float> numbers;
  for (const std::string& text : asked.values) numbers.push_back(fp32_of(text));
  const auto amax = asked.tensor_amax ? std::optional(fp32_of(*asked.tensor_amax)) : std::nullopt;
  return number::quantize_block(form, format, numbers, amax);
}

long count_of(const number::Block& block, number::Outcome outcome) {
  return std::ranges::count_if(block.numbers,
                               [&](const auto& one) { return one.outcome == outcome; });
}

nlohmann::ordered_json fp32_json(float x) {
  if (!std::isfinite(x)) return number::shown(x);
  return x;
}

nlohmann::ordered_json block_json(const number::Block& block,
                                  const std::vector<std::string>& inputs) {
  nlohmann::ordered_json json{{"form", block.form->name},
                              {"format", block.format->name},
                              {"amax", fp32_json(block.amax)},
                              {"tensor_amax", fp32_json(block.tensor_amax)},
                              {"scale", fp32_json(block.scale)},
                              {"scale_code", nullptr},
                              {"tensor_scale", nullptr},
                              {"saturated", count_of(block, number::Outcome::kOverflow)},
                              {"underflowed", count_of(block, number::Outcome::kUnderflow)},
                              {"numbers", nlohmann::ordered_json::array()}};
  if (block.scale_code) json["scale_code"] = fmt::format("0x{:02X}", *block.scale_code);
  if (block.tensor_scale) json["tensor_scale"] = fp32_json(*block.tensor_scale);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const number::BlockNumber& one = block.numbers[i];
    nlohmann::ordered_json row{{"input", inputs[i]},
                               {"fp32", fp32_json(one.from)},
                               {"code", number::hexadecimal(*block.format, one.code)},
                               {"of_code", number::double_of(*block.format, one.code)},
                               {"value", fp32_json(one.value)},
                               {"error_ulp", nullptr},
                               {"outcome", number::name_of(one.outcome)}};
    if (one.error_ulp) row["error_ulp"] = *one.error_ulp;
    json["numbers"].push_back(std::move(row));
  }
  return {{"block", std::move(json)}};
}

report::Table block_table(const number::Block& block, const std::vector<std::string>& inputs) {
  constexpr std::size_t kLongestInput = 20;
  constexpr int kDigits = 9;
  report::Table table{.title = fmt::format("{} of {}", block.form->name, block.format->name)};
  table.columns = {{.name = "number", .align = report::Align::kLeft},
                   {.name = "code", .align = report::Align::kLeft},
                   {.name = "of code"},
                   {.name = "value"},
                   {.name = "error", .unit = "ULP"},
                   {.name = "outcome", .align = report::Align::kLeft}};
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const number::BlockNumber& one = block.numbers[i];
    const Format& fp32 = format_of(Dtype::fp32);
    const number::Bits bits = std::bit_cast<std::uint32_t>(one.value);
    const std::string value =
        std::isfinite(one.value)
            ? number::round_to_decimal(number::value_of(fp32, bits), kDigits).text
            : number::shown(one.value);
    table.rows.push_back(
        {inputs[i].size() > kLongestInput ? inputs[i].substr(0, kLongestInput) + "..." : inputs[i],
         number::hexadecimal(*block.format, one.code), number::shown(*block.format, one.code),
         value, one.error_ulp ? number::ulp_text(*one.error_ulp) : "",
         one.outcome == number::Outcome::kOverflow ? "saturated"
                                                   : std::string(number::name_of(one.outcome))});
  }
  table.notes = {fmt::format(
      "{} of {} saturated, {} became 0. Errors are in the format's units, before the scale; values "
      "have {} digits.",
      count_of(block, number::Outcome::kOverflow), inputs.size(),
      count_of(block, number::Outcome::kUnderflow), kDigits)};
  return table;
}

}  // namespace

void show_block_of_numbers(const BlockOfNumbers& asked, const Output& output) {
  const number::Block block = block_of(asked);
  if (output.is_json()) return Output::print(block_json(block, asked.values));
  const std::string amax =
      number::shown(block.amax) +
      (asked.tensor_amax ? ", of the tensor " + number::shown(block.tensor_amax) : "");
  const std::vector<Entry> entries{{"form", {std::string(block.form->about)}},
                                   {"amax", {amax}},
                                   {"scale", number::scale_text(block)}};
  output.show(entries, {});
  Output::print_lines("\n");
  Output::print({block_table(block, asked.values)});
}

}  // namespace demi::cli
