// DEMI_RULE_ENTRY(name, Name), which the includer defines, for each rule of the list: it is the
// first line of demi/kernels/rules/NAME.h. No #pragma once.
// clang-format off
#define DEMI_RULE(name) DEMI_RULE_TEXT(demi/kernels/rules/name.h)  // NOLINT(bugprone-macro-parentheses)
// clang-format on
#include "demi/kernels/rules/list.h"
#undef DEMI_RULE_ENTRY
