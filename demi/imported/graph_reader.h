#pragma once

#include "demi/imported/field.h"
#include "demi/imported/graph.h"

namespace demi::imported {

c10::ScalarType read_dtype(const Field& field);
TensorMeta read_tensor_meta(const Field& field);
Argument read_argument(const Field& field, Source& source);

/// The graph and those in it. `source` gets the node that is being read, for messages.
Graph read_graph(const Field& field, Source& source);

}  // namespace demi::imported
