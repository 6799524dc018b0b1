#pragma once

#include <ATen/core/ivalue.h>

#include <map>
#include <string>
#include <vector>

#include "demi/imported/graph.h"
#include "demi/imported/prepared_graph.h"

namespace demi::imported {

/// The leaves of the arguments of a Python call, in the graph's order. Arguments may be given by
/// place or by name. Throws UsageError for too many, missing or unknown ones, and for containers of
/// another form than the exported ones.
Values flatten_arguments(const TreeSpec& in_spec, const std::vector<std::string>& names,
                         const std::vector<c10::IValue>& arguments,
                         const std::map<std::string, c10::IValue>& keywords);

/// The result that Python would return. namedtuple is a tuple, OrderedDict a dict.
c10::IValue unflatten(const TreeSpec& out_spec, const Values& leaves);

}  // namespace demi::imported
