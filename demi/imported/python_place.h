#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "demi/core/export.h"
#include "demi/imported/field.h"
#include "demi/imported/graph.h"

namespace demi::imported {

/// The innermost line of a stack trace that is not in PyTorch's own files, or else the innermost:
/// "net.py:15 in forward". Empty if there is none in a file.
DEMI_API std::string python_line(std::string_view stack_trace);

/// The innermost module of an nn_module_stack ("key,path,type;..."): path and type.
DEMI_API std::pair<std::string, std::string> python_module(std::string_view nn_module_stack);

/// The place in Python that a node's metadata names.
PythonPlace read_python_place(const Field& metadata);

}  // namespace demi::imported
