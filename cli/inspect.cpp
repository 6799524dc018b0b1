// demi inspect FILE: what a safetensors file, a checkpoint or an exported network holds, whether it
// is whole, and in what two of them differ.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/inspect_difference.h"
#include "cli/inspect_network.h"
#include "cli/inspect_text.h"
#include "cli/output.h"
#include "demi/checkpoint/checkpoint.h"
#include "demi/checkpoint/contents.h"
#include "demi/core/error.h"
#include "demi/tensor/dtype.h"
#include "lab/huggingface/folder.h"
#include "lab/inspect/statistics.h"
#include "lab/report/format.h"
#include "lab/report/table.h"

namespace demi::cli {
namespace {

using checkpoint::Contents;
using checkpoint::StoredTensor;
using inspect::Statistics;
using Json = nlohmann::ordered_json;

struct InspectArguments {
  std::string file;
  std::vector<std::string> diff;
  bool statistics = false, verify = false;
  Output output;
};

Json optional_json(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

std::string optional_text(const std::optional<double>& value) {
  return value ? report::format_number(*value) : "";
}

struct Listed {
  StoredTensor tensor;
  std::optional<Statistics> statistics;
};

Json tensor_json(const Listed& one, bool with_file) {
  const StoredTensor& tensor = one.tensor;
  Json json{{"name", tensor.name},
            {"dtype", tensor::name_of(tensor.dtype)},
            {"shape", tensor.shape},
            {"bytes", tensor.bytes}};
  if (with_file) json["file"] = tensor.file.filename().string();
  if (!tensor.checksum.empty()) json["checksum"] = tensor.checksum;
  if (!one.statistics) return json;
  const Statistics& s = *one.statistics;
  json["min"] = optional_json(s.min);
  json["max"] = optional_json(s.max);
  json["mean"] = optional_json(s.mean);
  json["std"] = optional_json(s.std);
  json["zeros"] = s.zeros;
  json["nan"] = s.nan;
  json["inf"] = s.infinite;
  return json;
}

/// A folder of Hugging Face's: its texts are those of config.json.
bool is_huggingface(const Contents& contents) {
  return contents.is_file && huggingface::folder_of(contents.path) == contents.path;
}

Json contents_json(const Contents& contents, const std::vector<Listed>& tensors, bool verified) {
  const bool is_foreign = is_huggingface(contents);
  Json json{{"path", contents.path.string()},
            {"kind", is_foreign         ? "huggingface"
                     : contents.is_file ? "file"
                                        : "checkpoint"}};
  if (contents.step) {
    json["step"] = *contents.step;
    json["demi"] = contents.demi;
    json["libtorch"] = contents.libtorch;
  }
  int64_t elements = 0;
  uint64_t bytes = 0;
  Json list = Json::array();
  for (const Listed& one : tensors) {
    elements += one.tensor.elements();
    bytes += one.tensor.bytes;
    list.push_back(tensor_json(one, is_foreign || !contents.is_file));
  }
  json["elements"] = elements;
  json["bytes"] = bytes;
  json["tensors"] = std::move(list);
  json["metadata"] = Json::object();
  for (const auto& [name, value] : contents.metadata)
    json["metadata"][name] = shown_text(name, value);
  if (!contents.is_file) json["numbers"] = Json::object();
  for (const auto& [part, numbers] : contents.numbers)
    for (const auto& [name, value] : numbers) json["numbers"][part][name] = number_json(value);
  if (verified) json["verified"] = true;
  return json;
}

/// "62 tensors, 11,173,962 elements, 44.7 MB: fp32 44.7 MB, int64 160 B".
std::string summary(const std::vector<const Listed*>& tensors) {
  std::map<std::string, double> bytes_of;
  int64_t elements = 0;
  double all = 0;
  for (const Listed* one : tensors) {
    const auto bytes = static_cast<double>(one->tensor.bytes);
    bytes_of[tensor::name_of(one->tensor.dtype)] += bytes;
    all += bytes;
    elements += one->tensor.elements();
  }
  std::string text =
      fmt::format("{} tensor{}, {} elements, {}", tensors.size(), tensors.size() == 1 ? "" : "s",
                  report::format_count(elements), report::format_bytes(all));
  std::vector<std::string> parts;
  parts.reserve(bytes_of.size());
  for (const auto& [dtype, bytes] : bytes_of)
    parts.push_back(fmt::format("{} {}", dtype, report::format_bytes(bytes)));
  return parts.empty() ? text : fmt::format("{}: {}", text, fmt::join(parts, ", "));
}

report::Table tensor_table(const std::string& title, const std::vector<const Listed*>& tensors) {
  report::Table table{.title = title};
  for (const char* name : {"tensor", "dtype", "shape"})
    table.columns.push_back({.name = name, .align = report::Align::kLeft});
  table.columns.push_back({.name = "bytes"});
  const bool sums =
      std::ranges::any_of(tensors, [](const Listed* one) { return !one->tensor.checksum.empty(); });
  const bool statistics =
      std::ranges::any_of(tensors, [](const Listed* one) { return one->statistics.has_value(); });
  if (sums) table.columns.push_back({.name = "checksum", .align = report::Align::kLeft});
  if (statistics)
    for (const char* name : {"min", "max", "mean", "std", "zeros", "NaN", "Inf"})
      table.columns.push_back({.name = name});
  for (const Listed* one : tensors) {
    const StoredTensor& tensor = one->tensor;
    std::vector<std::string>& row = table.rows.emplace_back(
        std::vector<std::string>{tensor.name, tensor::name_of(tensor.dtype), shape_text(tensor),
                                 report::format_count(static_cast<int64_t>(tensor.bytes))});
    if (sums) row.push_back(tensor.checksum);
    if (!one->statistics) continue;
    const Statistics& s = *one->statistics;
    for (const auto& value : {s.min, s.max, s.mean, s.std}) row.push_back(optional_text(value));
    for (const int64_t count : {s.zeros, s.nan, s.infinite})
      row.push_back(report::format_count(count));
  }
  table.notes = {summary(tensors)};
  return table;
}

report::Table pairs_table(const std::string& title, std::vector<std::vector<std::string>> rows) {
  return {.title = title,
          .columns = {{.name = "name", .align = report::Align::kLeft},
                      {.name = "value", .align = report::Align::kLeft}},
          .rows = std::move(rows)};
}

/// The tensors of the model's file, or of the state's.
report::Table file_table(const Contents& contents, const std::vector<Listed>& tensors,
                         bool of_model) {
  std::vector<const Listed*> part;
  for (const Listed& one : tensors)
    if (one.tensor.of_model == of_model) part.push_back(&one);
  const char* name = of_model ? "model.safetensors" : "state.safetensors";
  return tensor_table((contents.is_file ? contents.path : contents.path / name).string(), part);
}

std::vector<report::Table> contents_tables(const Contents& contents,
                                           const std::vector<Listed>& tensors) {
  std::vector<report::Table> tables{file_table(contents, tensors, /*of_model=*/true)};
  if (!contents.is_file) tables.push_back(file_table(contents, tensors, /*of_model=*/false));
  std::vector<std::vector<std::string>> numbers, text;
  if (contents.step)
    text = {{"step", std::to_string(*contents.step)},
            {"written by", fmt::format("demi {}, LibTorch {}", contents.demi, contents.libtorch)}};
  for (const auto& [part, entries] : contents.numbers)
    for (const auto& [name, value] : entries)
      numbers.push_back({part + "/" + name, number_text(value)});
  for (const auto& [name, value] : contents.metadata)
    text.push_back({name, one_line(shown_text(name, value))});
  if (!numbers.empty()) tables.push_back(pairs_table("numbers", std::move(numbers)));
  if (!text.empty())
    tables.push_back(
        pairs_table(is_huggingface(contents) ? "config.json" : "metadata", std::move(text)));
  return tables;
}

std::string verified_text(const Contents& contents) {
  const bool is_foreign = is_huggingface(contents);
  const bool has_checksums =
      !contents.is_file || std::ranges::any_of(contents.tensors, [](const StoredTensor& tensor) {
        return !tensor.checksum.empty();
      });
  if (is_foreign)
    return "Verified: header, size and values of each file fit together. They have no checksums.";
  if (has_checksums) return "Verified: every byte agrees with its checksum.";
  if (contents.metadata.contains("demi.crc32c"))
    return "Verified: values and demi's texts agree with the file's own checksum, demi.crc32c.";
  return "Verified: header, size and values fit together. This file has no checksums.";
}

void verify_all(const Contents& contents) {
  if (!is_huggingface(contents)) return checkpoint::verify(contents);
  for (const std::filesystem::path& file : huggingface::weight_files(contents.path))
    checkpoint::verify(checkpoint::contents(file));
}

void list(const InspectArguments& a) {
  Contents contents;
  std::vector<Listed> tensors;
  const auto read = [&](const std::filesystem::path& path) {
    contents = contents_of(path);
    if (a.verify) verify_all(contents);
    tensors.clear();
    for (const StoredTensor& tensor : contents.tensors) {
      tensors.push_back({.tensor = tensor});
      if (a.statistics) tensors.back().statistics = inspect::statistics(tensor);
    }
  };
  std::error_code unreadable;  // which reading it says
  if (std::filesystem::is_directory(a.file, unreadable) && huggingface::folder_of(a.file))
    read(a.file);
  else
    checkpoint::read_current(a.file, read);
  if (a.output.is_json()) return Output::print(contents_json(contents, tensors, a.verify));
  std::vector<report::Table> tables = contents_tables(contents, tensors);
  if (a.verify) tables.back().notes.push_back(verified_text(contents));
  Output::print(tables);
}

void inspect(const InspectArguments& a) {
  if (!a.diff.empty()) return show_difference(a.diff[0], a.diff[1], a.output);
  if (a.file.empty())
    throw UsageError(
        {.where = "inspect",
         .what = "which file?",
         .accepted = "a safetensors file, a checkpoint's folder, a run's or one of Hugging Face's, "
                     "a .pt2 file",
         .advice = "demi inspect runs/train-fashion-cnn-001"});
  if (!is_exported_network(a.file)) return list(a);
  if (a.statistics)
    throw UsageError({.where = "inspect",
                      .what = "the values of an exported network have no statistics here",
                      .seen = "--statistics " + a.file,
                      .accepted = "--verify, or no option",
                      .advice = "save its state_dict() as safetensors and inspect that"});
  show_exported_network(a.file, a.verify, a.output);
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto* command = app.add_subcommand(
      "inspect", "What a safetensors file or a checkpoint holds; whether it is whole; differences");
  const auto a = std::make_shared<InspectArguments>();
  auto* file = command->add_option("FILE", a->file,
                                   "Safetensors file, checkpoint folder, run folder (its last "
                                   "checkpoint), a folder of Hugging Face's, or a network "
                                   "that PyTorch exported (.pt2)");
  auto* statistics = command->add_flag(
      "--statistics", a->statistics,
      "Also read the values: least, greatest, mean, deviation, zeros, NaN and Inf");
  auto* verify =
      command->add_flag("--verify", a->verify, "Check every value against the checksums");
  command
      ->add_option("--diff", a->diff,
                   "Compare two of them: which tensors differ, in what and by how much")
      ->type_name("A B")
      ->expected(2)
      ->multi_option_policy(CLI::MultiOptionPolicy::Throw)
      ->excludes(file)
      ->excludes(statistics)
      ->excludes(verify);
  a->output.add_to(*command);
  command->callback([a] { inspect(*a); });
}

}  // namespace demi::cli
