#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/data/text_set.h"
#include "lab/files/damage.h"

namespace demi::data {

/// A record of a CSV file.
struct CsvRecord {
  std::vector<std::string> fields;  // without the quotes around them
  int64_t line;  // on which it begins, from 1; a quoted field may hold further lines
};

/// The separator that a file's name means: '\t' of .tsv and .tab, also with .gz behind it; else
/// ','.
DEMI_API char separator_of(const std::filesystem::path& file);

/// A whole CSV (',') or TSV ('\t') file by RFC 4180: fields in double quotes may hold separators,
/// line ends and doubled quotes; lines end with CRLF or LF, the last with or without. A quote
/// inside of an unquoted field means itself, as Python's csv and pandas read it. A byte order mark
/// and blank lines at the end are skipped. gzip is decompressed, which is recognised by the
/// content; if it is damaged, DataError is thrown whatever `report` is. Throws DataError with the
/// line: text after a closing quote, a quote that is never closed, another number of fields than
/// the first record has, a first record of one field that other separators divide; a file that
/// cannot be read, is UTF-16, a zip archive or git-lfs's pointer, or whose lines end with CR alone.
/// With another `report`, records that it is called for are left out.
DEMI_API std::vector<CsvRecord> read_csv(const std::filesystem::path& file, char separator,
                                         const files::DamageReport& report = files::report_damage);

/// Labelled texts out of a CSV or TSV file (separator_of its name).
struct LabelledTexts {
  std::vector<TextSource> sources;   // labels are places in classes
  std::vector<std::string> classes;  // all numbers: by value; else by their bytes
};

/// A first line that holds one of the names label, sentiment, class, target and one of text,
/// review, sentence, in any letter case, is a heading and says which columns are meant (two of one
/// kind are an error); otherwise there are two columns, label and text, and the first line's label
/// occurs in another line, too, or all labels are numbers; 0,1 above texts that are no numbers is
/// refused, since pandas numbers columns so. With `classes` given (those of the training file)
/// others are an error; without, there have to be two or more. Throws DataError with the line; also
/// if there are no texts, or one without a label. With another `report`, texts that it is called
/// for are left out.
DEMI_API LabelledTexts
read_labelled_texts(const std::filesystem::path& file, std::vector<std::string> classes = {},
                    const files::DamageReport& report = files::report_damage);

}  // namespace demi::data
