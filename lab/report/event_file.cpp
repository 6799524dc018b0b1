#include "lab/report/event_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>

#include "demi/core/crc32c.h"
#include "demi/core/error.h"
#include "lab/report/protobuf.h"
#include "lab/report/run_folder.h"

namespace demi::report {
namespace {

// Field numbers of tensorflow/core/util/event.proto and
// tensorflow/core/framework/{summary,tensor,tensor_shape}.proto.
namespace event {
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
}
namespace session_log {
constexpr int kStatus = 1;
constexpr int kStart = 1;  // SessionStatus
}  // namespace session_log
namespace summary {
constexpr int kValue = 1;
}
namespace value {
constexpr int kTag = 1, kSimpleValue = 2, kHistogram = 5, kTensor = 8, kMetadata = 9;
}
namespace histogram_proto {
constexpr int kMin = 1, kMax = 2, kNum = 3, kSum = 4, kSumSquares = 5, kBucketLimit = 6,
              kBucket = 7;
}
namespace tensor {
constexpr int kDtype = 1, kShape = 2, kStringVal = 8;
constexpr int kString = 7;  // DT_STRING
}  // namespace tensor

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

constexpr std::string_view kPrefix = "events.out.tfevents.";

// TensorBoard reads the files of a folder in the order of their names.
long long seconds_after_those_in(const std::filesystem::path& folder, double wall_time) {
  auto seconds = static_cast<long long>(std::floor(wall_time));
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kPrefix))
      seconds = std::max(seconds, 1 + std::strtoll(name.c_str() + kPrefix.size(), nullptr, 10));
  }
  return seconds;
}

std::filesystem::path name_in(const std::filesystem::path& folder, double wall_time) {
  static std::atomic<int> made{0};
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') host = {"localhost"};
  return folder / fmt::format("{}{}.{}.{}.{}", kPrefix, seconds_after_those_in(folder, wall_time),
                              host.data(), ::getpid(), made++);
}

Message event_at(double wall_time, std::int64_t step) {
  return Message().fixed64(event::kWallTime, wall_time).varint(event::kStep, step);
}

std::string summary_event(double wall_time, std::int64_t step, const Message& value) {
  return event_at(wall_time, step)
      .message(event::kSummary, Message().message(summary::kValue, value))
      .encoded();
}

std::string little_endian(std::uint64_t number, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(number >> (8 * i));
  return out;
}

/// The checksum as TFRecord stores it, so that the checksum of a file that holds checksums is not
/// degenerate: rotated right by 15 bits, plus 0xa282ead8 (tensorflow/core/lib/hash/crc32c.h).
std::uint32_t masked_crc32c(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

}  // namespace

std::string tfrecord(std::string_view data) {
  const std::string length = little_endian(data.size(), 8);
  return length + little_endian(masked_crc32c(length), 4) + std::string(data) +
         little_endian(masked_crc32c(data), 4);
}

// TensorBoard drops nothing at the first START of a folder, so every file has one.
EventFile::EventFile(const std::filesystem::path& folder, std::int64_t first_step,
                     std::chrono::duration<double> interval, WallClock clock)
    : clock_(clock ? std::move(clock) : seconds_since_1970),
      interval_(interval),
      file_(name_in(folder, clock_()), O_WRONLY | O_CREAT | O_EXCL | O_APPEND, kOtherRunsFolder),
      flushed_(std::chrono::steady_clock::now()) {
  append(Message()
             .fixed64(event::kWallTime, clock_())
             .bytes(event::kFileVersion, "brain.Event:2")
             .encoded());
  append(
      event_at(clock_(), first_step)
          .message(event::kSessionLog, Message().varint(session_log::kStatus, session_log::kStart))
          .encoded());
  flush();
}

EventFile::~EventFile() {
  try {
    if (file_.open()) flush();
  } catch (...) {  // NOLINT(bugprone-empty-catch): a destructor cannot report it
  }
}

void EventFile::scalar(std::string_view tag, std::int64_t step, double number) {
  append(summary_event(
      clock_(), step,
      Message().bytes(value::kTag, tag).fixed32(value::kSimpleValue, static_cast<float>(number))));
}

void EventFile::text(std::string_view tag, std::int64_t step, std::string_view markdown) {
  const Message shape = Message().message(2, Message().varint(1, 1));  // one dimension of size 1
  const Message plugin = Message().message(1, Message().bytes(1, "text"));
  const Message content = Message()
                              .varint(tensor::kDtype, tensor::kString)
                              .message(tensor::kShape, shape)
                              .bytes(tensor::kStringVal, markdown);
  append(summary_event(clock_(), step,
                       Message()
                           .bytes(value::kTag, tag)
                           .message(value::kTensor, content)
                           .message(value::kMetadata, plugin)));
}

void EventFile::histogram(std::string_view tag, std::int64_t step, const Histogram& h) {
  const Message content = Message()
                              .fixed64(histogram_proto::kMin, h.min)
                              .fixed64(histogram_proto::kMax, h.max)
                              .fixed64(histogram_proto::kNum, h.count)
                              .fixed64(histogram_proto::kSum, h.sum)
                              .fixed64(histogram_proto::kSumSquares, h.sum_squares)
                              .packed(histogram_proto::kBucketLimit, h.limits)
                              .packed(histogram_proto::kBucket, h.counts);
  append(summary_event(clock_(), step,
                       Message().bytes(value::kTag, tag).message(value::kHistogram, content)));
}

void EventFile::append(std::string_view event) {
  waiting_ += tfrecord(event);
  if (std::chrono::steady_clock::now() - flushed_ < interval_) return;
  try {
    flush();
  } catch (const TrainingError&) {  // as MetricsLog, it waits for the next interval
    flushed_ = std::chrono::steady_clock::now();
  }
}

void EventFile::flush() {
  file_.append(waiting_);
  waiting_.clear();
  flushed_ = std::chrono::steady_clock::now();
}

}  // namespace demi::report
