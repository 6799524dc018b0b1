#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "demi/core/descriptor.h"
#include "demi/core/export.h"

namespace demi::report {

/// A value of a field. A double that is not finite is written as null, and named.
using MetricValue =
    std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>>;
/// The fields of a line, in their order.
using MetricFields = std::vector<std::pair<std::string, MetricValue>>;

/// The line of these fields, with its end.
DEMI_API std::string metrics_line(const MetricFields& fields);

/// metrics.jsonl: one JSON object a line, fields in the order given. JSON has no NaN and no
/// infinities: such a value is written as null, which every reader takes for a gap, and named by
/// name in a field of its own:
///
///     {"step":12,"loss":null,"non_finite":{"loss":"nan"}}
///
/// Lines collect in memory and go to the file once an interval; a crash of the process loses at
/// most that interval. `sync` also outlives a crash of the machine. Not thread-safe.
class DEMI_API MetricsLog {
 public:
  /// Opens to append. A last line that a crash cut off is removed, so that the file stays valid.
  /// Throws TrainingError.
  explicit MetricsLog(const std::filesystem::path& path,
                      std::chrono::milliseconds interval = std::chrono::seconds(1));
  MetricsLog(MetricsLog&&) noexcept = default;
  ~MetricsLog();  // flushes; a failed write is silently lost, so call `sync` first

  void write(const MetricFields& fields);    // what cannot go to the file yet waits in memory
  void write_line(const std::string& line);  // of metrics_line
  void flush();                              // to the operating system
  void sync();                               // to the disk: after an epoch

 private:
  void try_to_flush();

  Descriptor file_;
  std::string waiting_;
  std::chrono::milliseconds interval_;
  std::chrono::steady_clock::time_point flushed_;
};

/// A line of a metrics file, and its number from 1.
struct MetricLine {
  std::int64_t number = 1;  // in the file, from 1
  MetricFields fields;      // in their order
};

/// Calls use(line, its fields) for each line that is a JSON object, and not for a last one without
/// an end. Throws DataError if the file is missing or cannot be read.
DEMI_API void for_each_metric(
    const std::filesystem::path& path,
    const std::function<void(const std::string&, const MetricFields&)>& use);

/// The sound part of a metrics file.
struct Metrics {
  std::vector<MetricLine> lines;  // in the order of the file
  /// The lines that are not in `lines`: "line 17 is no JSON object", "line 20, the last, is cut
  /// off".
  std::vector<std::string> left_out;
};

/// Reads a metrics file, damaged or not: lines that are no JSON objects are left out and named; so
/// is a last line without an end. Values that `non_finite` names are doubles again. Throws
/// DataError if the file is missing or cannot be read.
DEMI_API Metrics read_metrics(const std::filesystem::path& path);

/// The value of that name and type, or null.
template <class Value>
const Value* find_metric(const MetricFields& line, std::string_view name) {
  for (const auto& [key, value] : line)
    if (key == name) return std::get_if<Value>(&value);
  return nullptr;
}

/// Removes the lines for which `keep` says no, and a last line that was cut off. The other lines
/// keep their bytes and their order; one that is damaged is kept. The file is replaced as a whole
/// or not at all. Nothing happens if there is no file. Throws TrainingError.
DEMI_API void keep_metrics(const std::filesystem::path& path,
                           const std::function<bool(const MetricFields&)>& keep);

}  // namespace demi::report
