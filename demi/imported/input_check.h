#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "demi/imported/graph.h"
#include "demi/imported/prepared_graph.h"
#include "demi/imported/size_expression.h"

namespace demi::imported {

/// Compares what forward is given with what the network was exported for: dtypes, sizes that are
/// fixed, sizes that are equal to or computed from others, and their ranges. As in Python, a range
/// that begins at 2 allows 0 and 1, too.
class InputCheck {
 public:
  explicit InputCheck(const Program& program);

  /// Throws UsageError, which names the input and its dimension.
  void operator()(const Values& leaves) const;

 private:
  struct Dimension {
    std::int64_t fixed = 0;
    std::string symbol = {};
    std::optional<SizeExpression> expression = {};
  };
  struct Input {
    std::string name;
    bool is_tensor = false;
    c10::ScalarType dtype = c10::ScalarType::Float;
    std::vector<Dimension> dimensions;
    std::optional<Argument> fixed = {};
  };

  void check_tensor(const Input& input, const c10::IValue& value,
                    SizeExpression::Symbols& symbols) const;
  void check_expressions(const Values& leaves, const SizeExpression::Symbols& symbols) const;
  void check_ranges(const SizeExpression::Symbols& symbols) const;

  std::vector<Input> inputs_;
  std::map<std::string, SymbolRange> ranges_;
};

}  // namespace demi::imported
