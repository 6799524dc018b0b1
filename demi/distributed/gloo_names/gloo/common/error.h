#pragma once
// gloo/algorithm.h says why this file is here.
