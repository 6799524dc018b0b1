#include "demi/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "demi/checkpoint/folder.h"
#include "demi/checkpoint/input_file.h"
#include "demi/checkpoint/run_id.h"
#include "demi/core/crc32c.h"
#include "demi/core/error.h"
#include "demi/core/json_value.h"

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

double number_of(const JsonValue<>& value) {
  if (value.is_number()) return value.get<double>();
  const auto text = value.is_text() ? std::string_view(value.text()) : std::string_view();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  const auto bits = from_hexadecimal<uint64_t>(text.starts_with("nan:") ? text.substr(4) : "");
  if (!bits || !std::isnan(std::bit_cast<double>(*bits)))
    value.refuse("is no number", "a number, inf, -inf, nan or nan:BITS");
  return std::bit_cast<double>(*bits);
}

StateDict numbers_of(const JsonValue<>& values) {
  StateDict numbers;
  values.members([&](const std::string& name, const JsonValue<>& value) {
    numbers.emplace(name, number_of(value));
  });
  return numbers;
}

uint32_t checksum_of(const JsonValue<>& value) {
  const auto checksum = from_hexadecimal<uint32_t>(value.text());
  if (!checksum) value.refuse("is no checksum", "8 hexadecimal digits");
  return *checksum;
}

std::map<std::string, uint32_t> checksums_of(const JsonValue<>& values) {
  std::map<std::string, uint32_t> checksums;
  values.members([&](const std::string& name, const JsonValue<>& value) {
    checksums.emplace(name, checksum_of(value));
  });
  return checksums;
}

int64_t count_of(const JsonValue<>& value, int64_t least = 0) {
  return value.whole(least, std::numeric_limits<int64_t>::max());
}

Manifest manifest_of(const JsonValue<>& document) {
  if (const auto format = document.at("format"); format.text() != kKind)
    format.refuse("is another kind", kKind);
  count_of(document.at("format_version"), 1);
  Manifest manifest{
      .step = count_of(document.at("step")),
      .demi = document.at("demi").text(),
      .libtorch = document.at("libtorch").text(),
      .numbers = {},
      .text = document.at("text").get<Metadata>(),
      .files = {},
      .run = document.value("run", std::string(kNoRunId)),
      .parameters = document.value("parameters", std::map<std::string, ParameterGroups>()),
      .keep = document.value("keep", false)};
  if (const auto scores = document.find("scores")) manifest.scores = numbers_of(*scores);
  document.at("numbers").members([&](const std::string& part, const JsonValue<>& numbers) {
    manifest.numbers.emplace(part, numbers_of(numbers));
  });
  document.at("files").members([&](const std::string& name, const JsonValue<>& file) {
    FileRecord& record = manifest.files[name];
    record.bytes = static_cast<uint64_t>(count_of(file.at("bytes")));
    record.checksum = checksum_of(file.at("crc32c"));
    record.tensors = checksums_of(file.at("tensors"));
    if (const auto texts = file.find("texts")) record.texts = checksums_of(*texts);
  });
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
    return manifest_of(JsonValue<>(document));
  } catch (const JsonError& error) {
    fail("the file is no manifest of a checkpoint", 0, error.what(), kKind);
  }
}

Manifest read_manifest(const std::filesystem::path& checkpoint) {
  const InputFile file(checkpoint / kManifestFile, kLoad, "the manifest of a checkpoint");
  if (file.bytes() > kLongestManifest)
    file.fault()("the file is too long for a manifest", 0, fmt::format("{} bytes", file.bytes()),
                 fmt::format("at most {}", kLongestManifest));
  std::string text(file.bytes(), '\0');
  file.read(text.data(), 0, text.size());
  return parse_manifest(checkpoint / kManifestFile, text);
}

bool has_manifest(const std::filesystem::path& folder) {
  constexpr uint64_t kBeginning = 4096;  // the kind is the first member
  const auto has = [&](const char* name) {
    std::error_code code;
    const auto type = std::filesystem::status(folder / name, code).type();
    return type != std::filesystem::file_type::not_found;  // the system may not know
  };
  if (!has(kManifestFile)) return false;
  if (has(kModelFile) && has(kStateFile)) return true;
  try {
    const InputFile file(folder / kManifestFile, kLoad, "the manifest of a checkpoint");
    std::string text(std::min(file.bytes(), kBeginning), '\0');
    file.read(text.data(), 0, text.size());
    return text.find(kKind) != std::string::npos;
  } catch (const DataError&) {
    return true;
  }
}

}  // namespace demi::checkpoint
