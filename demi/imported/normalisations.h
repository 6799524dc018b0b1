#pragma once

#include <set>
#include <string>
#include <vector>

#include "demi/imported/graph.h"

namespace demi::imported {

/// The modules that are normalisations ("block.bn"), which have no types here: the operators of
/// batch, instance, layer, group or RMS normalisation read each of their parameters and buffers
/// that is read at all. A normalisation that is written out in other operations is not found.
std::set<std::string> normalisation_modules(const std::vector<const Program*>& programs);

}  // namespace demi::imported
