#pragma once

/// Marks a class or function that the shared library exports; everything else is hidden.
#define DEMI_API __attribute__((visibility("default")))
