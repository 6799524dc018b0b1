#pragma once

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

#include "demi/core/error.h"
#include "demi/profile/memory.h"
#include "lab/workload/batch_size.h"

namespace demi::workload {

// LibTorch, and the standard library, on sizes that no memory holds or no int64 counts.
inline bool is_too_large(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string_view text = of_torch ? of_torch->what_without_backtrace() : error.what();
  return is_out_of_memory(error) || dynamic_cast<const std::length_error*>(&error) != nullptr ||
         text.find("overflow") != text.npos;
}

// Returns what `make` returns. If no memory holds that, throws an error that names the settings in
// place of the allocator's.
template <class Make>
auto within_memory(std::string_view what, const std::string& settings, const Make& make) {
  try {
    return make();
  } catch (const std::exception& error) {
    if (!is_too_large(error)) throw;
  }
  throw UsageError(
      {.where = "workload.read_data",
       .what = std::string(what) + " of these settings would not fit in memory",
       .seen = settings,
       .accepted = fmt::format("what fits in the {:.1f} MB that are free",
                               1e-6 * static_cast<double>(profile::free_memory(c10::kCPU))),
       .advice = "choose smaller numbers"});
}

}  // namespace demi::workload
