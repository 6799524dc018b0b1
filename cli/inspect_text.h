#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>

#include "demi/checkpoint/contents.h"

namespace demi::cli {

/// "(64, 3, 7, 7)".
std::string shape_text(const checkpoint::StoredTensor& tensor);

/// A number of a checkpoint with all its digits.
std::string number_text(double value);
/// The number for JSON; NaN and Inf, which JSON lacks, as text.
nlohmann::ordered_json number_json(double value);

/// The text, which may be a whole configuration, on one line of a table.
std::string one_line(const std::string& text);

/// A metadata entry for display: a vocabulary's words are counted, and the first ones named. Any
/// other text is shown itself.
std::string shown_text(const std::string& name, const std::string& text);

/// Both sides of an entry that differs, for display. For two vocabularies the first word that
/// differs is named: those that are shown may be equal.
std::pair<std::string, std::string> shown_texts(const std::string& name, const std::string& first,
                                                const std::string& second);

}  // namespace demi::cli
