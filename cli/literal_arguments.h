#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace demi::cli {

/// The arguments of a command whose values may be any text, in a form in which CLI11 takes none of
/// them for an option ("-5") or for a list ("[good, bad]"): a blank is put in front of those that
/// it would, and of those that `literal` would take for one with such a blank. Nothing after "--",
/// which is removed, is an option; nor is the argument right after one of `texts`, options whose
/// value is a text.
std::vector<std::string> protected_arguments(std::vector<std::string> arguments,
                                             const std::set<std::string>& texts = {});

/// The argument itself again.
std::string literal(const std::string& argument);

}  // namespace demi::cli
