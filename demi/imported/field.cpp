#include "demi/imported/field.h"

#include <fmt/format.h>

#include <limits>

#include "demi/checkpoint/input_file.h"
#include "demi/core/error.h"
#include "demi/core/json.h"

namespace demi::imported {

using nlohmann::json;

json parse_json(const Source& source, std::string_view text) {
  try {
    return read_json(text);
  } catch (const JsonError& error) {
    refuse<DataError>(
        {.where = "imported.read",
         .what = fmt::format("{}: {} is not JSON", source.file.string(), source.record),
         .seen = checkpoint::excerpt(error.what()),
         .accepted = "what torch.export.save writes",
         .advice = "export it again"});
  }
}

void Field::refuse(std::string_view what, std::string_view accepted) const {
  const std::string inside = source_->inside.empty() ? "" : ", " + source_->inside;
  const std::string seen = value_->dump(-1, ' ', false, json::error_handler_t::replace);
  demi::refuse<DataError>(
      {.where = "imported.read",
       .what = fmt::format("{}: {}{}: {} {}", source_->file.string(), source_->record,
                           checkpoint::excerpt(inside), checkpoint::excerpt(key_), what),
       .seen = checkpoint::excerpt(seen),
       .accepted = accepted,
       .advice = "the file is damaged, or of another version of the format: export it again"});
}

std::optional<Field> Field::find(std::string_view key) const {
  if (!value_->is_object()) refuse("is no object", "an object");
  const auto found = value_->find(std::string(key));
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return Field(*source_, *found, found.key());
}

Field Field::operator[](std::string_view key) const {
  if (std::optional<Field> field = find(key)) return *field;
  refuse(fmt::format("has no {}", key), "an object that has it");
}

std::pair<std::string_view, Field> Field::only() const {
  if (!value_->is_object() || value_->size() != 1)
    refuse("is not one of several kinds", "an object with one key");
  const auto entry = value_->begin();
  return {entry.key(), Field(*source_, *entry, entry.key())};
}

std::size_t Field::size() const {
  if (!value_->is_array()) refuse("is no list", "a list");
  return value_->size();
}

Field Field::at(std::size_t index) const {
  if (index >= size()) refuse(fmt::format("has no element {}", index), "a longer list");
  return {*source_, (*value_)[index], key_};
}

bool Field::is_null() const { return value_->is_null(); }
bool Field::is_text() const { return value_->is_string(); }

std::int64_t Field::integer() const {
  const bool is_large = value_->is_number_unsigned() &&
                        value_->get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max();
  if (!value_->is_number_integer() || is_large) refuse("is no integer", "an integer of 64 bits");
  return value_->get<std::int64_t>();
}

double Field::number() const {
  if (value_->is_number()) return value_->get<double>();
  const std::string_view text = value_->is_string() ? value_->get_ref<const std::string&>() : "";
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  refuse("is no number", "a number, Infinity, -Infinity or NaN");
}

bool Field::truth() const {
  if (!value_->is_boolean()) refuse("is no truth value", "true or false");
  return value_->get<bool>();
}

const std::string& Field::text() const {
  if (!value_->is_string()) refuse("is no text", "a text");
  return value_->get_ref<const std::string&>();
}

}  // namespace demi::imported
