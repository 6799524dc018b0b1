#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/number_block.h"
#include "cli/output.h"
#include "demi/core/error.h"
#include "lab/number/explanation.h"
#include "lab/number/range.h"

namespace demi::cli {
namespace {

const std::vector<number::FixedPoint> kDefaultSplit{{8, 8}};  // of --range

struct NumberOptions {
  std::vector<std::string> values;
  std::string formats;  // "": all
  bool range = false;
  std::optional<std::string> fixed;
  std::optional<std::string> block;        // its form
  std::optional<std::string> tensor_amax;  // of --block
  Output output;
};

struct FixedExplanation {
  number::FixedPoint split;
  number::FixedValue value;
};

struct ExplainedValue {
  number::Expression expression;
  std::vector<number::Explanation> explanations;  // one a format
  std::optional<number::ExactNumber> exact;
  std::vector<FixedExplanation> fixed;  // one a split; none if `exact` is not known
};

std::vector<const Format*> chosen_formats(const std::string& names) {
  std::vector<const Format*> chosen;
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ',');)
    chosen.push_back(&format_of(parse_dtype(name)));
  if (chosen.empty())
    for (const Format& format : formats())
      if (format.has_nan) chosen.push_back(&format);
  return chosen;
}

// A negative number reaches the program with a blank before its sign (literal_arguments.h).
std::string without_blank(std::string text) { return text.erase(0, text.find_first_not_of(' ')); }

ExplainedValue explain_value(std::string text, const std::vector<const Format*>& chosen,
                             const std::vector<number::FixedPoint>& splits) {
  ExplainedValue value{.expression = number::Expression(without_blank(std::move(text)))};
  value.exact = value.expression.exact_value();
  for (const Format* format : chosen) {
    if (!format->has_nan && !value.exact)
      throw UsageError({.where = "--format",
                        .what = "fp4_e2m1 has neither Inf nor NaN, and this is no finite number",
                        .seen = value.expression.text(),
                        .advice = "choose other formats"});
    value.explanations.push_back(number::explain(value.expression, value.exact, *format));
  }
  if (!splits.empty() && !value.exact)
    throw UsageError({.where = "--fixed",
                      .what = "a fixed-point number is finite, and this has no finite exact value",
                      .seen = value.expression.text(),
                      .advice = "leave out --fixed"});
  for (const number::FixedPoint split : splits)
    value.fixed.push_back({split, number::round_to(split, *value.exact)});
  return value;
}

// Infinities and NaN are words in JSON, which has no numbers for them.
nlohmann::ordered_json number_json(const Format& format, number::Bits bits) {
  const double value = number::double_of(format, bits);
  if (!std::isfinite(value)) return number::shown(format, bits);
  return value;
}

nlohmann::ordered_json steps_json(const number::Explanation& e) {
  auto steps = nlohmann::ordered_json::array();
  for (const number::Step& step : e.steps) {
    steps.push_back({{"text", step.text},
                     {"value", number_json(*e.format, step.result.bits)},
                     {"outcome", number::name_of(step.outcome)}});
  }
  return steps;
}

nlohmann::ordered_json format_json(const ExplainedValue& value, const number::Explanation& e) {
  const Format& format = *e.format;
  const number::Fields fields = number::fields_of(format, e.bits);
  nlohmann::ordered_json json{
      {"hex", number::hexadecimal(format, e.bits)},
      {"sign", fields.sign},
      {"exponent", fmt::format("{:0{}b}", fields.exponent, format.exponent_bits)},
      {"fraction", fmt::format("{:0{}b}", fields.fraction, format.fraction_bits)},
      {"value", number_json(format, e.bits)},
      {"error_ulp", nullptr},
      {"decimal", number::decimal(format, e.bits)},
      {"outcome", number::name_of(e.outcome)},
      {"below", nullptr},
      {"above", nullptr},
      {"steps", steps_json(e)},
      {"derivation", number::derivation(value.expression, e)}};
  if (e.error_ulp) json["error_ulp"] = *e.error_ulp;
  if (number::kind_of(format, e.bits) != number::Kind::kNaN) {
    const number::Bits below = number::next_down(format, e.bits);
    const number::Bits above = number::next_up(format, e.bits);
    if (below != e.bits) json["below"] = number_json(format, below);
    if (above != e.bits) json["above"] = number_json(format, above);
  }
  return json;
}

nlohmann::ordered_json exact_json(const std::optional<number::ExactNumber>& x) {
  if (!x) return nullptr;
  const Format& fp64 = format_of(Dtype::fp64);
  return number::double_of(fp64, number::round_to(fp64, *x));
}

nlohmann::ordered_json fixed_json(const ExplainedValue& value, const FixedExplanation& fixed) {
  const auto& [split, rounded] = fixed;
  return {{"hex", number::hexadecimal(split, rounded.bits)},
          {"bits", fmt::format("{:0{}b}", rounded.bits, split.bits())},
          {"value", exact_json(rounded.value)},
          {"error_ulp", rounded.error_ulp},
          {"decimal", to_decimal(rounded.value)},
          {"outcome", number::name_of(rounded.outcome)},
          {"lowest", exact_json(number::lowest(split))},
          {"largest", exact_json(number::largest(split))},
          {"step", exact_json(number::step(split))},
          {"derivation", number::derivation(split, *value.exact, rounded)}};
}

nlohmann::ordered_json value_json(const ExplainedValue& value) {
  nlohmann::ordered_json json{{"input", value.expression.text()},
                              {"formats", nlohmann::ordered_json::object()}};
  for (const number::Explanation& e : value.explanations)
    json["formats"][std::string(e.format->name)] = format_json(value, e);
  for (const FixedExplanation& fixed : value.fixed)
    json["fixed"][number::text_of(fixed.split)] = fixed_json(value, fixed);
  return json;
}

nlohmann::ordered_json range_json(const std::vector<number::Range>& ranges) {
  auto json = nlohmann::ordered_json::array();
  for (const number::Range& range : ranges) {
    json.push_back({{"name", range.name},
                    {"bytes", range.bytes},
                    {"lowest", exact_json(range.lowest)},
                    {"largest", exact_json(range.largest)},
                    {"smallest_normal", exact_json(range.smallest_normal)},
                    {"smallest_denormal", exact_json(range.smallest_denormal)},
                    {"epsilon", exact_json(range.epsilon)},
                    {"step", exact_json(range.step)}});
  }
  return json;
}

// The number in as many digits as fit after a sign: the table has to fit 80 columns.
std::string range_text(const std::optional<number::ExactNumber>& x, int width = 10) {
  if (!x) return "";
  std::string text;
  for (int digits = width; digits > 0; --digits) {
    text = number::round_to_decimal(*x, digits).text;
    if (text.size() <= static_cast<std::size_t>(width) + (x->negative ? 1 : 0)) break;
  }
  return text;
}

report::Table range_table(const std::vector<number::Range>& ranges) {
  report::Table table{.title = "what fits"};
  table.columns = {{.name = "format", .align = report::Align::kLeft},
                   {.name = "bytes"},
                   {.name = "lowest"},
                   {.name = "largest"},
                   {.name = "smallest normal"},
                   {.name = "smallest denormal"},
                   {.name = "epsilon or step"}};
  for (const number::Range& range : ranges) {
    table.rows.push_back({range.name, std::to_string(range.bytes), range_text(range.lowest),
                          range_text(range.largest, 11), range_text(range.smallest_normal),
                          range_text(range.smallest_denormal),
                          range_text(range.epsilon ? range.epsilon : range.step)});
  }
  table.notes = {
      "Bytes are those of one value; tf32 is a mode of FP32 products and is stored as FP32. "
      "Epsilon is the distance from 1 to the next floating point number; the distance grows with "
      "the number. Integers and fixed-point numbers have one step everywhere.",
      "fp8_e4m3 is the OCP's E4M3 (float8_e4m3fn): no infinities, and a NaN for each sign. fixed "
      "8.8 has 8 bits before the point, the sign among them, and 8 behind it (--fixed)."};
  if (std::ranges::any_of(ranges, [](const auto& range) { return range.name == "fp4_e2m1"; }))
    table.notes.push_back("Two numbers of fp4_e2m1 share a byte.");
  return table;
}

report::Table summary(const ExplainedValue& value) {
  constexpr int kDigits = 12;
  constexpr std::size_t kLongestTitle = 60;
  const std::string& text = value.expression.text();
  report::Table table{.title = text.size() > kLongestTitle ? text.substr(0, kLongestTitle) + "..."
                                                           : text};
  table.columns = {{.name = "format", .align = report::Align::kLeft},
                   {.name = "hex", .align = report::Align::kLeft},
                   {.name = "value"},
                   {.name = "error", .unit = "ULP"},
                   {.name = "outcome", .align = report::Align::kLeft}};
  bool all_digits = true;
  for (const number::Explanation& e : value.explanations) {
    const Format& format = *e.format;
    std::string shown = number::shown(format, e.bits);
    if (number::is_finite(format, e.bits)) {
      const auto decimal = number::round_to_decimal(number::value_of(format, e.bits), kDigits);
      shown = decimal.text;
      all_digits = all_digits && decimal.is_exact;
    }
    table.rows.push_back({std::string(format.name), number::hexadecimal(format, e.bits), shown,
                          e.error_ulp ? number::ulp_text(*e.error_ulp) : "",
                          std::string(number::name_of(e.outcome))});
  }
  for (const auto& [split, fixed] : value.fixed) {
    const auto decimal = number::round_to_decimal(fixed.value, kDigits);
    all_digits = all_digits && decimal.is_exact;
    table.rows.push_back({number::name_of(split), number::hexadecimal(split, fixed.bits),
                          decimal.text, number::ulp_text(fixed.error_ulp),
                          std::string(number::name_of(fixed.outcome))});
  }
  if (!all_digits)
    table.notes = {fmt::format("Values to {} digits; all digits stand above.", kDigits)};
  return table;
}

void print_entry(std::string name, std::size_t width, std::vector<std::string> lines,
                 const Output& output) {
  name.resize(width, ' ');
  output.show({Entry{std::move(name), std::move(lines)}}, {});
  Output::print_lines("\n");
}

void print_value(const ExplainedValue& value, const Output& output) {
  std::size_t widest = 0;
  for (const number::Explanation& e : value.explanations)
    widest = std::max(widest, e.format->name.size());
  for (const FixedExplanation& fixed : value.fixed)
    widest = std::max(widest, number::name_of(fixed.split).size());
  for (const number::Explanation& e : value.explanations) {
    std::vector<std::string> lines{
        number::fields_ruler(*e.format),
        number::fields_text(*e.format, e.bits) + "  " + number::hexadecimal(*e.format, e.bits)};
    for (std::string& line : number::derivation(value.expression, e))
      lines.push_back(std::move(line));
    print_entry(std::string(e.format->name), widest, std::move(lines), output);
  }
  for (const auto& [split, fixed] : value.fixed) {
    std::vector<std::string> lines{
        number::fields_ruler(split),
        number::fields_text(split, fixed.bits) + "  " + number::hexadecimal(split, fixed.bits)};
    for (std::string& line : number::derivation(split, *value.exact, fixed))
      lines.push_back(std::move(line));
    print_entry(number::name_of(split), widest, std::move(lines), output);
  }
  Output::print({summary(value)});
}

void show_block(const NumberOptions& options) {
  if (options.range || options.fixed)
    throw UsageError({.where = "--block",
                      .what = "a block has one format, and neither --range nor --fixed",
                      .seen = options.range ? "--range" : "--fixed",
                      .advice = "leave it out"});
  const auto chosen = chosen_formats(options.formats);
  if (!options.formats.empty() && chosen.size() != 1)
    throw UsageError({.where = "--block",
                      .what = "a block has one format",
                      .seen = options.formats,
                      .accepted = "one name"});
  std::vector<std::string> values;
  for (const std::string& text : options.values) values.push_back(without_blank(text));
  show_block_of_numbers({.form = *options.block,
                         .values = std::move(values),
                         .format = options.formats.empty() ? nullptr : chosen.front(),
                         .tensor_amax = options.tensor_amax},
                        options.output);
}

void show_numbers(const NumberOptions& options) {
  if (options.block) return show_block(options);
  if (options.values.empty() && !options.range) {
    throw UsageError({.where = "number",
                      .what = "which number?",
                      .advice = "demi number -314.625, demi number '2049+1', demi number --range"});
  }
  const auto chosen = chosen_formats(options.formats);
  const auto splits =
      options.fixed ? number::read_fixed_points(*options.fixed) : std::vector<number::FixedPoint>();
  std::vector<ExplainedValue> values;
  for (const std::string& text : options.values)
    values.push_back(explain_value(text, chosen, splits));
  const auto ranges = options.range
                          ? number::ranges(chosen, splits.empty() ? kDefaultSplit : splits)
                          : std::vector<number::Range>();
  if (options.output.is_json()) {
    nlohmann::ordered_json json{{"values", nlohmann::ordered_json::array()}};
    for (const ExplainedValue& value : values) json["values"].push_back(value_json(value));
    if (options.range) json["ranges"] = range_json(ranges);
    return Output::print(json);
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) Output::print_lines("\n");
    print_value(values[i], options.output);
  }
  if (options.range) {
    if (!values.empty()) Output::print_lines("\n");
    Output::print({range_table(ranges)});
  }
}

}  // namespace

void add_number(CLI::App& app) {
  auto* command = app.add_subcommand(
      "number", "A number in every format: bits, rounding, error, neighbours, range");
  const auto options = std::make_shared<NumberOptions>();
  command->add_option("VALUE", options->values,
                      "Number (-314.625, 1e-8, 0x1.8p-3, inf, nan) or expression with + - * / and "
                      "parentheses ('2049+1'), which is computed step by step in each format");
  command->add_option("--format", options->formats,
                      "Formats, separated by commas: fp64 fp32 tf32 fp16 bf16 fp8_e4m3 fp8_e5m2 "
                      "fp4_e2m1, or their other names, such as half [all but fp4_e2m1]");
  command->add_flag("--range", options->range,
                    "Range, smallest numbers, epsilon and bytes of the formats, of integers and of "
                    "fixed-point numbers");
  command->add_option("--fixed", options->fixed,
                      "Fixed-point formats, too, by comma: bits before and behind the point, the "
                      "sign among the first (8.8,1.15); what a value becomes in them, and with "
                      "--range what fits [--range: 8.8]");
  auto* block = command->add_option(
      "--block", options->block,
      "The values as a block with one scale: fp8, mxfp8, mxfp4 or nvfp4 (up to 16 "
      "values, of the mx forms 32); --format chooses fp8_e4m3 or fp8_e5m2");
  command
      ->add_option("--tensor-amax", options->tensor_amax,
                   "Greatest magnitude of the tensor that the block is of, which decides the "
                   "scale of fp8 and nvfp4 [that of the values]")
      ->needs(block);
  options->output.add_to(*command);
  command->footer(
      "Rounding is to nearest, ties to even, with subnormal numbers. fp8_e4m3 is float8_e4m3fn.");
  command->callback([options] { show_numbers(*options); });
}

}  // namespace demi::cli
