#pragma once

#include <nlohmann/json.hpp>

#include "lab/report/table.h"

namespace demi::report {

/// title, columns, rows of text, notes.
inline nlohmann::ordered_json json_of(const Table& table) {
  auto columns = nlohmann::ordered_json::array();
  for (const Column& column : table.columns)
    columns.push_back(column.unit.empty() ? column.name : column.name + " (" + column.unit + ")");
  return {{"title", table.title},
          {"columns", std::move(columns)},
          {"rows", table.rows},
          {"notes", table.notes}};
}

}  // namespace demi::report
