#include DEMI_RULE(yogi)
