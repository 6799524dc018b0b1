#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lab/bench/progress.h"

namespace demi::bench {

/// Records the parts that a measurement reports. Expects that they are counted from none to all.
class ToldParts {
 public:
  OnPart on_part() {
    return [this](const std::string& part, int64_t done, int64_t parts) {
      if (parts_.empty()) all_ = parts;
      EXPECT_EQ(parts, all_) << part;
      ended_ = part.empty();
      if (ended_) return;
      EXPECT_EQ(done, static_cast<int64_t>(parts_.size())) << part;
      parts_.push_back(part);
    };
  }

  const std::vector<std::string>& parts() const {
    EXPECT_TRUE(ended_);
    EXPECT_EQ(static_cast<int64_t>(parts_.size()), all_);
    return parts_;
  }

 private:
  std::vector<std::string> parts_;
  int64_t all_ = 0;
  bool ended_ = false;
};

}  // namespace demi::bench
