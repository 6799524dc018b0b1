#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "demi/imported/field.h"

namespace demi::imported {

/// The nesting of arguments or results in Python's containers (torch.utils._pytree, TREESPEC 1).
struct TreeSpec {
  enum class Kind { leaf, tuple, list, dict };
  using Key = std::variant<std::int64_t, std::string>;

  Kind kind = Kind::leaf;
  std::vector<Key> keys;  // of a dict
  std::vector<TreeSpec> children;
  std::size_t leaves = 1;
};

/// Parses such a text. Throws JsonError for text of another form, and, with the container's name,
/// for containers other than tuple, list, dict, OrderedDict and namedtuple.
TreeSpec parse_tree_spec(const Field& text);

}  // namespace demi::imported
