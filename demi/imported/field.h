#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace demi::imported {

/// The JSON text of an archive that is being read, for messages.
struct Source {
  std::filesystem::path file;
  std::string record;       // "models/model.json"
  std::string inside = {};  // "node conv2d", or nothing
};

/// A JSON document. Throws DataError for text that is not JSON.
nlohmann::json parse_json(const Source& source, std::string_view text);

/// A value of a JSON document, whose form is checked when it is read. Everything throws DataError,
/// which names the file, the record, the key and the value. Refers to source and document.
class Field {
 public:
  Field(const Source& source, const nlohmann::json& value, std::string_view key = "the text")
      : source_(&source), value_(&value), key_(key) {}

  std::string_view key() const { return key_; }
  const Source& source() const { return *source_; }

  Field operator[](std::string_view key) const;           // must be there
  std::optional<Field> find(std::string_view key) const;  // nothing: not there, or null
  std::pair<std::string_view, Field> only() const;        // of an object with one key: a union
  std::size_t size() const;                               // of an array
  Field at(std::size_t index) const;
  bool is_null() const;
  bool is_text() const;

  std::int64_t integer() const;
  double number() const;  // also "Infinity", "-Infinity", "NaN", as the exporter writes them
  bool truth() const;
  const std::string& text() const;

  /// Calls use(Field) for each element of an array.
  template <class Use>
  void each(const Use& use) const {
    for (std::size_t i = 0, count = size(); i < count; ++i) use(at(i));
  }

  /// Calls use(name, Field) for each entry of an object.
  template <class Use>
  void members(const Use& use) const {
    if (!value_->is_object()) refuse("is no object", "an object");
    for (auto entry = value_->begin(); entry != value_->end(); ++entry)
      use(entry.key(), Field(*source_, *entry, entry.key()));
  }

  [[noreturn]] void refuse(std::string_view what, std::string_view accepted) const;

 private:
  const Source* source_;
  const nlohmann::json* value_;
  std::string_view key_;
};

}  // namespace demi::imported
