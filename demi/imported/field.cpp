#include "demi/imported/field.h"

#include <fmt/format.h>

#include <limits>

#include "demi/checkpoint/input_file.h"
#include "demi/core/error.h"

namespace demi::imported {

void refuse_document(const Source& source, const JsonError& error) {
  const std::string inside = source.inside.empty() ? "" : ", " + source.inside;
  refuse<DataError>(
      {.where = "imported.read",
       .what = fmt::format("{}: {}{}: {}", source.file.string(), source.record,
                           checkpoint::excerpt(inside), error.what()),
       .advice = "the file is damaged, or of another version of the format: export it again"});
}

double number_of(const Field& field) {
  using Limits = std::numeric_limits<double>;
  if (!field.is_text()) return field.get<double>();
  if (field.text() == "Infinity") return Limits::infinity();
  if (field.text() == "-Infinity") return -Limits::infinity();
  if (field.text() == "NaN") return Limits::quiet_NaN();
  field.refuse("is no number", "a number, Infinity, -Infinity or NaN");
}

}  // namespace demi::imported
