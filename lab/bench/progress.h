#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace demi::bench {

/// Called before each part of a measurement with its name ("round 2 of 7, bf16"), the number of
/// parts that are done, and the number of all. Called once more with "" as part at the end, also of
/// a measurement that throws. May be empty.
using OnPart = std::function<void(const std::string& part, int64_t done, int64_t parts)>;

/// Counts the parts of a measurement.
class Parts {
 public:
  Parts(OnPart on_part, std::size_t parts)
      : on_part_(std::move(on_part)), parts_(static_cast<int64_t>(parts)) {}
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;
  ~Parts() {
    if (on_part_) on_part_("", done_, parts_);
  }

  /// Tells of the next part, and counts it.
  void begin(const std::string& part) {
    if (on_part_) on_part_(part, done_, parts_);
    ++done_;
  }

 private:
  const OnPart on_part_;
  int64_t done_ = 0;
  const int64_t parts_;
};

}  // namespace demi::bench
