#pragma once

// Every optimizer: the headers of the rules in demi/kernels/rules/list.h.
// clang-format off
#define DEMI_RULE(name) DEMI_RULE_TEXT(demi/optim/name.h)  // NOLINT(bugprone-macro-parentheses)
// clang-format on
#include "demi/kernels/rules/list.h"
