#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/data/damage.h"

namespace demi::data {

struct CsvRecord {
  std::vector<std::string> fields;
  int64_t line;  // on which it begins, from 1; a quoted field may hold further lines
};

/// A whole CSV (',') or TSV ('\t') file by RFC 4180: fields in double quotes may hold separators,
/// line ends and doubled quotes; lines end with CRLF or LF, the last with or without. A quote
/// inside of an unquoted field stands for itself, as Python's csv and pandas read it. A byte order
/// mark and blank lines at the end are skipped. Throws DataError with the line: text after a
/// closing quote, a quote that is never closed, another number of fields than the first record
/// has, a first record of one field that other separators divide. What another `report` is told of
/// is left out.
DEMI_API std::vector<CsvRecord> read_csv(const std::filesystem::path& file, char separator,
                                         const DamageReport& report = report_damage);

}  // namespace demi::data
