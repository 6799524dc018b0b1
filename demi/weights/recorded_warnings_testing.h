#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <vector>

namespace demi::weights::testing {

/// Records LibTorch's warnings in a scope instead of printing them.
class RecordedWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { messages_.push_back(warning.msg()); }

  const std::vector<std::string>& messages() const { return messages_; }
  int64_t holding(const std::string& part) const {
    return std::count_if(messages_.begin(), messages_.end(), [&](const std::string& message) {
      return message.find(part) != std::string::npos;
    });
  }

 private:
  std::vector<std::string> messages_;
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

}  // namespace demi::weights::testing
