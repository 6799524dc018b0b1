// The update rules, one a line, in the order in which help and tables show them. A rule NAME is the
// files demi/kernels/rules/NAME.h and demi/optim/NAME.{h,cpp}; docs/guide/add_optimizer.md adds
// one. No #pragma once: whoever includes this defines which of a rule's files DEMI_RULE(NAME) is,
// by DEMI_RULE_TEXT. Without that it is empty, as where each public header is compiled by itself.
#define DEMI_RULE_QUOTED(file) #file
#define DEMI_RULE_TEXT(file) DEMI_RULE_QUOTED(file)

#ifdef DEMI_RULE
#include DEMI_RULE(sgd)
#include DEMI_RULE(adam)
#include DEMI_RULE(adamw)
#include DEMI_RULE(lamb)
#include DEMI_RULE(lion)
#include DEMI_RULE(rmsprop)
#include DEMI_RULE(nadam)
#include DEMI_RULE(radam)
#include DEMI_RULE(adagrad)
#include DEMI_RULE(muon)

// More of such lines, outside of the tree: -DDEMI_MORE_RULES='"FILE"'.
#ifdef DEMI_MORE_RULES
#include DEMI_MORE_RULES
#endif
#endif

#undef DEMI_RULE_TEXT
#undef DEMI_RULE_QUOTED
#undef DEMI_RULE
