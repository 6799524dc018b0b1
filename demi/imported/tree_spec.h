#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "demi/core/export.h"
#include "demi/imported/field.h"

namespace demi::imported {

/// How arguments or results are nested in Python's containers (torch.utils._pytree, TREESPEC 1).
struct TreeSpec {
  enum class Kind { leaf, tuple, list, dict };
  using Key = std::variant<std::int64_t, std::string>;

  Kind kind = Kind::leaf;
  std::vector<Key> keys;  // of a dict
  std::vector<TreeSpec> children;
  std::size_t leaves = 1;
};

/// Throws JsonError for text of another form, and for a container that is none of tuple, list,
/// dict, OrderedDict, namedtuple: by its name.
TreeSpec parse_tree_spec(const Field& text);

}  // namespace demi::imported
