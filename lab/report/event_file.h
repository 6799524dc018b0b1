#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/descriptor.h"
#include "demi/core/export.h"

namespace demi::report {

/// Counts of values by size, as TensorBoard shows them (tensorflow/core/framework/summary.proto,
/// HistogramProto).
struct Histogram {
  /// Least and greatest of the values, their number, sum and sum of squares.
  double min = 0, max = 0, count = 0, sum = 0, sum_squares = 0;
  std::vector<double> limits;  // upper end of each bucket, rising
  std::vector<double> counts;  // same length
};

/// A record of a TFRecord file (tensorflow.org/tutorials/load_data/tfrecord): length, its masked
/// CRC-32C, the data, its masked CRC-32C, all little-endian.
DEMI_API std::string tfrecord(std::string_view data);

/// A TensorBoard event file in `folder` (`tensorboard --logdir FOLDER`), named
/// events.out.tfevents.SECONDS.HOST.PID.N so that TensorBoard finds it, reads it after those that
/// are in the folder already, and no two writers share one. Collects in memory and writes once in
/// `interval` and on `flush`; a record is never half written but by a crash, which TensorBoard
/// understands. Throws TrainingError if the disk is full. Not thread-safe.
class DEMI_API EventFile {
 public:
  using WallClock = std::function<double()>;  // seconds since 1970

  /// `first_step`: TensorBoard drops what older files of the folder have of this step and of later
  /// ones, so that a resumed run does not show its steps twice.
  explicit EventFile(const std::filesystem::path& folder, std::int64_t first_step = 0,
                     std::chrono::duration<double> interval = std::chrono::seconds(10),
                     WallClock clock = {});
  EventFile(EventFile&&) noexcept = default;
  ~EventFile();  // flushes; a failed write is silently lost

  /// Tags are paths: "loss/train", "loss/test" become one group. NaN and infinities are written as
  /// such, and shown.
  void scalar(std::string_view tag, std::int64_t step, double value);  // stored as fp32
  /// Text is Markdown.
  void text(std::string_view tag, std::int64_t step, std::string_view markdown);
  /// A distribution of values.
  void histogram(std::string_view tag, std::int64_t step, const Histogram& histogram);
  void flush();

  /// The file that it writes.
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  void append(std::string_view event);

  WallClock clock_;
  std::chrono::duration<double> interval_;
  Descriptor file_;
  std::string waiting_;
  std::chrono::steady_clock::time_point flushed_;
};

}  // namespace demi::report
