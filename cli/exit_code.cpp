#include "cli/exit_code.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "cli/say.h"
#include "demi/core/error.h"

namespace demi::cli {
namespace {

int code_of(const std::exception& error) {
  if (dynamic_cast<const UsageError*>(&error)) return kUsage;
  if (dynamic_cast<const DataError*>(&error)) return kData;
  if (dynamic_cast<const std::filesystem::filesystem_error*>(&error)) return kData;
  if (dynamic_cast<const DeviceError*>(&error)) return kDevice;
  return kTrainingFailed;
}

// Whether DEMI_DEBUG=1 asks for the stack trace of LibTorch's errors.
bool wants_stack_trace() {
  const char* set = std::getenv("DEMI_DEBUG");
  const std::string_view debug = set == nullptr ? "" : set;
  return !debug.empty() && debug != "0";
}

}  // namespace

int report_failure(const std::exception& error) {
  const auto* torch_error = wants_stack_trace() ? nullptr : dynamic_cast<const c10::Error*>(&error);
  const std::string_view text = torch_error ? torch_error->what_without_backtrace() : error.what();
  say("demi: ", text);
  return code_of(error);
}

}  // namespace demi::cli
