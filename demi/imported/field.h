#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "demi/core/json_value.h"

namespace demi::imported {

/// The JSON text of an archive that is being read, for messages.
struct Source {
  std::filesystem::path file;
  std::string record;       // "models/model.json"
  std::string inside = {};  // "node conv2d", or nothing
};

using Field = JsonValue<>;

/// A number, also "Infinity", "-Infinity" and "NaN", as the exporter writes them.
double number_of(const Field& field);

[[noreturn]] void refuse_document(const Source& source, const JsonError& error);

/// Returns what read(Field) returns for the document. Throws DataError, which names file and
/// record, in place of JsonError.
template <class Read>
auto read_document(const Source& source, std::string_view text, const Read& read) {
  try {
    const nlohmann::json document = read_json(text);
    return read(Field(document));
  } catch (const JsonError& error) {
    refuse_document(source, error);
  }
}

}  // namespace demi::imported
