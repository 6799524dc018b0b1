#include "lab/report/metrics_log.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "demi/core/atomic_file.h"
#include "demi/core/error.h"
#include "demi/core/json.h"
#include "lab/report/run_folder.h"

namespace demi::report {
namespace {

using Json = nlohmann::ordered_json;

const char* name_of_non_finite(double value) {
  return std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
}

Json to_json(const MetricFields& fields) {
  Json line = Json::object();
  Json non_finite = Json::object();
  for (const auto& [name, value] : fields) {
    const double* const number = std::get_if<double>(&value);
    if (number != nullptr && !std::isfinite(*number)) {
      line[name] = nullptr;
      non_finite[name] = name_of_non_finite(*number);
    } else {
      std::visit([&line, &key = name](const auto& held) { line[key] = held; }, value);
    }
  }
  if (!non_finite.empty()) line["non_finite"] = std::move(non_finite);
  return line;
}

double non_finite_named(const Json& line, const std::string& name) {
  const Json told = line.value("non_finite", Json());
  const std::string text = told.is_object() && told.contains(name) ? told[name].dump() : "\"nan\"";
  if (text == "\"nan\"") return std::numeric_limits<double>::quiet_NaN();
  return text == "\"inf\"" ? std::numeric_limits<double>::infinity()
                           : -std::numeric_limits<double>::infinity();
}

MetricFields from_json(const Json& line) {
  MetricFields fields;
  for (const auto& [name, value] : line.items()) {
    if (name == "non_finite") continue;
    if (value.is_boolean()) fields.emplace_back(name, value.get<bool>());
    const bool is_beyond =
        value.is_number_unsigned() && !std::in_range<std::int64_t>(value.get<std::uint64_t>());
    const bool is_whole = value.is_number_integer() && !is_beyond;
    if (is_whole) fields.emplace_back(name, value.get<std::int64_t>());
    if (value.is_number() && !is_whole) fields.emplace_back(name, value.get<double>());
    if (value.is_string()) fields.emplace_back(name, value.get<std::string>());
    if (value.is_array() &&
        std::ranges::all_of(value, [](const Json& one) { return one.is_number_integer(); }))
      fields.emplace_back(name, value.get<std::vector<std::int64_t>>());
    if (value.is_null()) fields.emplace_back(name, non_finite_named(line, name));
  }
  return fields;
}

/// Calls `use(line)` for each line that ends in '\n'. Returns where the last of them ended.
template <typename Use>
std::streamoff for_each_line(const std::filesystem::path& path, const Use& use) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw_file_error("report.MetricsLog", path, "cannot be read", errno, kOtherRunsFolder);
  std::streamoff offset = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    use(line);
    offset += static_cast<std::streamoff>(line.size()) + 1;
  }
  // A read error is not the end: appending here would write over the rest.
  if (file.bad())
    throw_file_error("report.MetricsLog", path, "cannot be read", errno, kOtherRunsFolder);
  return offset;
}

void cut_file(const std::filesystem::path& path, std::streamoff size) {
  std::error_code error;
  std::filesystem::resize_file(path, static_cast<std::uintmax_t>(size), error);
  if (error)
    throw_file_error("report.MetricsLog", path, "cannot be shortened", error.value(),
                     kOtherRunsFolder);
}

}  // namespace

MetricsLog::MetricsLog(const std::filesystem::path& path, std::chrono::milliseconds interval)
    : file_(path, O_WRONLY | O_CREAT | O_APPEND, kOtherRunsFolder),
      interval_(interval),
      flushed_(std::chrono::steady_clock::now()) {
  const std::streamoff whole = for_each_line(path, [](const std::string&) {});
  if (whole < static_cast<std::streamoff>(std::filesystem::file_size(path))) cut_file(path, whole);
}

MetricsLog::~MetricsLog() {
  try {
    if (file_.open()) flush();
  } catch (...) {  // NOLINT(bugprone-empty-catch): a destructor cannot report it
  }
}

std::string metrics_line(const MetricFields& fields) {
  return to_json(fields).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

void MetricsLog::write(const MetricFields& fields) { write_line(metrics_line(fields)); }

void MetricsLog::write_line(const std::string& line) {
  waiting_ += line;
  if (std::chrono::steady_clock::now() - flushed_ >= interval_) try_to_flush();
}

// The lines wait for the next interval, so that a disk that is full for a minute ends no run.
void MetricsLog::try_to_flush() {
  try {
    flush();
  } catch (const TrainingError&) {
    flushed_ = std::chrono::steady_clock::now();
  }
}

void MetricsLog::flush() {
  file_.append(waiting_);
  waiting_.clear();
  flushed_ = std::chrono::steady_clock::now();
}

void MetricsLog::sync() {
  flush();
  file_.sync();
}

namespace {

std::uintmax_t size_of(const std::filesystem::path& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error)
    throw DataError({.where = "report.read_metrics",
                     .what = "the file cannot be read: " + error.message(),
                     .seen = path.string()});
  return size;
}

}  // namespace

void for_each_metric(const std::filesystem::path& path,
                     const std::function<void(const std::string&, const MetricFields&)>& use) {
  size_of(path);
  for_each_line(path, [&](const std::string& text) {
    const Json line = json_or_null<Json>(text);
    if (line.is_object()) use(text + "\n", from_json(line));
  });
}

Metrics read_metrics(const std::filesystem::path& path) {
  const std::uintmax_t size = size_of(path);
  Metrics metrics;
  std::int64_t number = 0;
  const std::streamoff whole = for_each_line(path, [&](const std::string& text) {
    ++number;
    const Json line = json_or_null<Json>(text);
    if (line.is_object())
      metrics.lines.push_back({number, from_json(line)});
    else
      metrics.left_out.push_back("line " + std::to_string(number) + " is no JSON object");
  });
  if (whole < static_cast<std::streamoff>(size))
    metrics.left_out.push_back("line " + std::to_string(number + 1) + ", the last, is cut off");
  return metrics;
}

void keep_metrics(const std::filesystem::path& path,
                  const std::function<bool(const MetricFields&)>& keep) {
  if (!std::filesystem::exists(path)) return;
  AtomicFile file(std::filesystem::canonical(path), kOtherRunsFolder);  // a link stays one
  for_each_line(path, [&](const std::string& text) {
    const Json line = json_or_null<Json>(text);
    if (!line.is_object() || keep(from_json(line))) file.write(text + "\n");
  });
  file.commit();
}

}  // namespace demi::report
