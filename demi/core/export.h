#pragma once

/// Marks what the shared library offers; everything else is hidden.
#define DEMI_API __attribute__((visibility("default")))
