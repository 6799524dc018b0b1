#pragma once

#include "demi/imported/field.h"
#include "demi/imported/graph.h"

namespace demi::imported {

/// The program of a models/NAME.json: its graph, signature, trees and ranges. Throws JsonError,
/// also if signature and graph do not fit each other, or a node uses a value that nothing made.
Program read_program(const Field& field, Source& source, const std::string& name);

}  // namespace demi::imported
