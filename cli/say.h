#pragma once

#include <string_view>

namespace demi::cli {

/// Writes "KIND TEXT" to stderr as lines of their own, wrapped on a terminal
/// (report::message_lines).
void say(std::string_view kind, std::string_view text);

}  // namespace demi::cli
