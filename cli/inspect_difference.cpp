#include "cli/inspect_difference.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "cli/inspect_text.h"
#include "demi/core/json.h"
#include "demi/tensor/dtype.h"
#include "lab/huggingface/folder.h"
#include "lab/inspect/difference.h"
#include "lab/report/format.h"
#include "lab/report/table.h"

namespace demi::cli {
namespace {

using checkpoint::Contents;
using checkpoint::StoredTensor;
using inspect::Difference;
using inspect::TensorDifference;
using Json = nlohmann::ordered_json;
using Kind = TensorDifference::Kind;

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::values:
      return "values";
    case Kind::dtype:
      return "dtype";
    case Kind::shape:
      return "shape";
    case Kind::only_in_first:
      return "only in first";
    case Kind::only_in_second:
      break;
  }
  return "only in second";
}

Json side_json(const std::optional<StoredTensor>& side) {
  if (!side) return {};
  return {{"dtype", tensor::name_of(side->dtype)}, {"shape", side->shape}};
}

Json difference_json(const std::vector<TensorDifference>& differences) {
  Json all = Json::array();
  for (const TensorDifference& one : differences) {
    const bool compared = one.kind == Kind::values || one.kind == Kind::dtype;
    Json json{{"name", one.name},
              {"kind", kind_name(one.kind)},
              {"first", side_json(one.first)},
              {"second", side_json(one.second)}};
    if (compared) {
      json["elements"] = one.elements;
      json["different_elements"] = one.different_elements;
      json["max_abs_difference"] = one.max_abs_difference;
      json["non_finite"] = one.non_finite;
    }
    all.push_back(std::move(json));
  }
  return all;
}

template <class Value, class Show>
Json entries_json(const std::vector<inspect::EntryDifference<Value>>& entries, Show show) {
  Json all = Json::array();
  for (const auto& entry : entries)
    all.push_back({{"name", entry.name},
                   {"first", entry.first ? show(*entry.first) : Json()},
                   {"second", entry.second ? show(*entry.second) : Json()}});
  return all;
}

/// "fp32 (3, 4)" on both sides, or what differs: "fp32 and bf16".
std::string what_differs(const TensorDifference& one) {
  const auto words = [](const StoredTensor& tensor) {
    return tensor::name_of(tensor.dtype) + " " + shape_text(tensor);
  };
  switch (one.kind) {
    case Kind::values:
      return "values";
    case Kind::dtype:
      return tensor::name_of(one.first->dtype) + " and " + tensor::name_of(one.second->dtype);
    case Kind::shape:
      return words(*one.first) + " and " + words(*one.second);
    case Kind::only_in_first:
      return "only in the first: " + words(*one.first);
    case Kind::only_in_second:
      break;
  }
  return "only in the second: " + words(*one.second);
}

report::Table difference_table(const std::string& title,
                               const std::vector<TensorDifference>& differences) {
  report::Table table{.title = title,
                      .columns = {{.name = "tensor", .align = report::Align::kLeft},
                                  {.name = "differs in", .align = report::Align::kLeft},
                                  {.name = "elements that differ"},
                                  {.name = "of"},
                                  {.name = "largest difference"}}};
  for (const TensorDifference& one : differences) {
    std::vector<std::string>& row =
        table.rows.emplace_back(std::vector<std::string>{one.name, what_differs(one)});
    if (one.kind != Kind::values && one.kind != Kind::dtype) continue;
    row.push_back(report::format_count(one.different_elements));
    row.push_back(report::format_count(one.elements));
    row.push_back(report::format_number(one.max_abs_difference) +
                  (one.non_finite > 0
                       ? fmt::format(", {} NaN or Inf", report::format_count(one.non_finite))
                       : ""));
  }
  return table;
}

template <class Value, class Show>
report::Table entry_table(const std::string& title,
                          const std::vector<inspect::EntryDifference<Value>>& entries, Show show) {
  report::Table table{.title = title};
  for (const char* name : {"name", "first", "second"})
    table.columns.push_back({.name = name, .align = report::Align::kLeft});
  for (const auto& entry : entries)
    table.rows.push_back({entry.name, entry.first ? show(*entry.first) : "",
                          entry.second ? show(*entry.second) : ""});
  return table;
}

Json json_of(const Contents& first, const Contents& second, const Difference& found) {
  return {
      {"first", first.path.string()},
      {"second", second.path.string()},
      {"tensors", found.compared},
      {"different_tensors", found.tensors.size()},
      {"differences", difference_json(found.tensors)},
      {"times", difference_json(found.times)},
      {"numbers", entries_json(found.numbers, number_json)},
      {"metadata", entries_json(found.text, [](const std::string& text) { return Json(text); })}};
}

std::string sentence_of(const std::string& pair, const Difference& found) {
  if (found.tensors.empty())
    return fmt::format("{}: all {} tensors are equal bit for bit", pair,
                       report::format_count(found.compared));
  return fmt::format("{} of {} tensors differ", report::format_count(std::ssize(found.tensors)),
                     report::format_count(found.compared));
}

/// Cuts entries, so that no side of one shows a whole vocabulary.
void show_shortly(Difference& found) {
  for (auto& entry : found.text) {
    if (entry.first && entry.second) {
      std::tie(*entry.first, *entry.second) = shown_texts(entry.name, *entry.first, *entry.second);
      continue;
    }
    for (std::optional<std::string>* side : {&entry.first, &entry.second})
      if (*side) *side = shown_text(entry.name, **side);
  }
}

void drop_what_is_equal(Json& a, Json& b) {
  const Json all = a;
  for (const auto& [name, value] : all.items()) {
    if (!b.contains(name)) continue;
    if (a[name].is_object() && b[name].is_object()) drop_what_is_equal(a[name], b[name]);
    if (a[name] != b[name]) continue;
    a.erase(name);
    b.erase(name);
  }
}

/// Of two JSON objects, such as configurations, leaves what differs: a line shows the beginning.
void show_what_differs(Difference& found) {
  for (auto& entry : found.text) {
    if (!entry.first || !entry.second) continue;
    Json a = json_or_null<Json>(*entry.first), b = json_or_null<Json>(*entry.second);
    if (!a.is_object() || !b.is_object()) continue;
    drop_what_is_equal(a, b);
    entry.first = a.dump();
    entry.second = b.dump();
  }
}

}  // namespace

Contents contents_of(const std::filesystem::path& path) {
  std::error_code unreadable;  // which reading it says
  const bool is_folder = std::filesystem::is_directory(path, unreadable);
  return is_folder && huggingface::folder_of(path) ? huggingface::contents(path)
                                                   : checkpoint::contents(path);
}

void show_difference(const std::string& a, const std::string& b, const Output& output) {
  const Contents first = contents_of(a), second = contents_of(b);
  Difference found = inspect::difference(first, second);
  show_shortly(found);
  if (output.is_json()) return Output::print(json_of(first, second, found));
  show_what_differs(found);
  const std::string pair = fmt::format("{} and {}", first.path.string(), second.path.string());
  std::vector<report::Table> tables;
  if (!found.tensors.empty()) {
    tables.push_back(difference_table(pair, found.tensors));
    tables.back().notes = {sentence_of(pair, found)};
  }
  if (!found.numbers.empty()) tables.push_back(entry_table("numbers", found.numbers, number_text));
  if (!found.text.empty()) tables.push_back(entry_table("metadata", found.text, one_line));
  if (found.tensors.empty()) Output::print(std::string_view(sentence_of(pair, found)));
  if (found.tensors.empty() && !tables.empty()) Output::print_lines("\n");
  Output::print(tables);
}

}  // namespace demi::cli
