#include "demi/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "demi/checkpoint/input_file.h"
#include "demi/checkpoint/run_id.h"
#include "demi/core/crc32c.h"
#include "demi/core/error.h"
#include "demi/core/json.h"

namespace demi::checkpoint {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kKind = "demi checkpoint";
constexpr std::string_view kLoad = "checkpoint.load";
constexpr uint64_t kLongestManifest = uint64_t{1} << 30;

std::string checksum_text(uint32_t checksum) { return fmt::format("{:08x}", checksum); }

constexpr std::size_t kClosingBytes = sizeof(",\n  \"crc32c\": \"01234567\"\n}\n") - 1;

template <class Number>
std::optional<Number> from_hexadecimal(std::string_view text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.size() != 2 * sizeof number)
    return std::nullopt;
  return number;
}

// JSON has neither infinities nor NaN.
ordered_json number_to_json(double value) {
  if (std::isfinite(value)) return value;
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const auto bits = std::bit_cast<uint64_t>(value);
  if (bits == std::bit_cast<uint64_t>(std::numeric_limits<double>::quiet_NaN())) return "nan";
  return fmt::format("nan:{:016x}", bits);
}

/// What a text that is no manifest throws; parse_manifest turns it into a DataError.
struct FormatError {
  std::string what, seen;
};

double number_from_json(const json& value) {
  if (value.is_number()) return value.get<double>();
  const auto& text = value.get_ref<const std::string&>();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  const auto bits = from_hexadecimal<uint64_t>(
      text.starts_with("nan:") ? std::string_view(text).substr(4) : std::string_view());
  if (!bits || !std::isnan(std::bit_cast<double>(*bits)))
    throw FormatError{"a number has another form", text};
  return std::bit_cast<double>(*bits);
}

uint32_t checksum_from_json(const json& value) {
  const auto& text = value.get_ref<const std::string&>();
  const auto checksum = from_hexadecimal<uint32_t>(text);
  if (!checksum) throw FormatError{"a checksum has another form", text};
  return *checksum;
}

template <class Number>
Number count_from_json(const json& value) {
  if (!value.is_number_integer() || (!value.is_number_unsigned() && value.get<int64_t>() < 0) ||
      value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    throw FormatError{"a count has another form", value.dump()};
  return value.get<Number>();
}

const json& object(const json& value) {
  if (!value.is_object()) throw FormatError{"an object has another form", value.dump()};
  return value;
}

Manifest manifest_from_json(const json& document) {
  Manifest manifest{.step = count_from_json<int64_t>(document.at("step")),
                    .demi = document.at("demi").get<std::string>(),
                    .libtorch = document.at("libtorch").get<std::string>(),
                    .numbers = {},
                    .text = document.at("text").get<Metadata>(),
                    .files = {},
                    .run = document.value("run", std::string(kNoRunId))};
  if (document.contains("parameters"))
    manifest.parameters =
        object(document.at("parameters")).get<std::map<std::string, ParameterGroups>>();
  if (document.contains("keep")) manifest.keep = document.at("keep").get<bool>();
  if (document.contains("scores"))
    for (const auto& [name, score] : object(document.at("scores")).items())
      manifest.scores.emplace(name, number_from_json(score));
  for (const auto& [part, numbers] : object(document.at("numbers")).items())
    for (StateDict& state = manifest.numbers[part];
         const auto& [name, number] : object(numbers).items())
      state.emplace(name, number_from_json(number));
  for (const auto& [name, file] : object(document.at("files")).items()) {
    FileRecord& record = manifest.files[name];
    record.bytes = count_from_json<uint64_t>(file.at("bytes"));
    record.checksum = checksum_from_json(file.at("crc32c"));
    for (const auto& [tensor, checksum] : object(file.at("tensors")).items())
      record.tensors.emplace(tensor, checksum_from_json(checksum));
    if (!file.contains("texts")) continue;
    for (const auto& [text, checksum] : object(file.at("texts")).items())
      record.texts.emplace(text, checksum_from_json(checksum));
  }
  return manifest;
}

/// The format's version, if a newer demi wrote the document, which need not be whole.
std::optional<std::string> newer_version(const json& document) {
  if (!document.is_object() || document.value("format", json()) != json(kKind)) return std::nullopt;
  const json version = document.value("format_version", json());
  const bool newer = version.is_number_unsigned() && version.get<uint64_t>() > kFormatVersion;
  return newer ? std::optional(version.dump()) : std::nullopt;
}

}  // namespace

std::string closing_of_manifest(std::string_view body) {
  return fmt::format(",\n  \"crc32c\": \"{}\"\n}}\n", checksum_text(crc32c(body)));
}

std::string to_text(const Manifest& manifest) {
  ordered_json document{{"format", kKind},
                        {"format_version", kFormatVersion},
                        {"demi", manifest.demi},
                        {"libtorch", manifest.libtorch},
                        {"step", manifest.step}};
  if (!manifest.run.empty() && manifest.run != kNoRunId) document["run"] = manifest.run;
  if (manifest.keep) document["keep"] = true;
  for (const auto& [name, score] : manifest.scores)
    document["scores"][name] = number_to_json(score);
  document["text"] = manifest.text;
  document["numbers"] = ordered_json::object();
  if (!manifest.parameters.empty()) document["parameters"] = manifest.parameters;
  document["files"] = ordered_json::object();
  for (const auto& [part, numbers] : manifest.numbers) {
    ordered_json& state = document["numbers"][part] = ordered_json::object();
    for (const auto& [name, number] : numbers) state[name] = number_to_json(number);
  }
  for (const auto& [name, record] : manifest.files) {
    ordered_json tensors = ordered_json::object();
    for (const auto& [tensor, sum] : record.tensors) tensors[tensor] = checksum_text(sum);
    document["files"][name] = {{"bytes", record.bytes},
                               {"crc32c", checksum_text(record.checksum)},
                               {"tensors", std::move(tensors)}};
    for (const auto& [text, sum] : record.texts)
      document["files"][name]["texts"][text] = checksum_text(sum);
  }
  std::string text;
  try {
    text = document.dump(2);
  } catch (const json::type_error& error) {
    refuse({.where = "checkpoint.save",
            .what = "a name or a text is not UTF-8",
            .seen = error.what(),
            .accepted = "UTF-8"});
  }
  text.resize(text.rfind('\n'));  // without the closing brace
  return text + closing_of_manifest(text);
}

Manifest parse_manifest(const std::filesystem::path& file, std::string_view text) {
  const Fault fail{file, kLoad};
  json document;
  std::string not_json;
  try {
    document = read_json(text, kLongestManifest);
  } catch (const JsonError& error) {
    not_json = error.what();
  }
  if (const auto version = newer_version(document))
    throw DataError({.where = kLoad,
                     .what = file.string() + " was written by a newer demi",
                     .seen = "format_version " + *version,
                     .accepted = fmt::format("at most {}", kFormatVersion),
                     .advice = "load it with that demi, or update this one"});
  const std::size_t body = text.size() - std::min(text.size(), kClosingBytes);
  if (const std::string expected = closing_of_manifest(text.substr(0, body));
      text.substr(body) != expected)
    fail("the file does not end with its checksum", body, text.substr(body), expected);
  if (!not_json.empty()) fail("the file is no manifest of a checkpoint", 0, not_json, kKind);
  try {
    if (document.at("format") != json(kKind))
      throw FormatError{"the kind is another", document.at("format").dump()};
    if (count_from_json<int64_t>(document.at("format_version")) < 1)
      throw FormatError{"the format's version is below 1", document.at("format_version").dump()};
    return manifest_from_json(document);
  } catch (const json::exception& error) {
    fail("the file is no manifest of a checkpoint", 0, error.what(), kKind);
  } catch (const FormatError& error) {
    fail(error.what, 0, error.seen, kKind);
  }
}

Manifest read_manifest(const std::filesystem::path& checkpoint) {
  const InputFile file(checkpoint / "manifest.json", kLoad, "the manifest of a checkpoint");
  if (file.bytes() > kLongestManifest)
    file.fault()("the file is too long for a manifest", 0, fmt::format("{} bytes", file.bytes()),
                 fmt::format("at most {}", kLongestManifest));
  std::string text(file.bytes(), '\0');
  file.read(text.data(), 0, text.size());
  return parse_manifest(checkpoint / "manifest.json", text);
}

}  // namespace demi::checkpoint
