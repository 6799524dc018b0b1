#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"

namespace demi::imported {

/// An integer expression over symbols as sympy's srepr writes it:
/// `Mul(Integer(2), Symbol('s0', positive=True, integer=True))`.
class DEMI_API SizeExpression {
 public:
  using Symbols = std::map<std::string, std::int64_t, std::less<>>;

  /// Parses such a text; nullopt for text of another form.
  static std::optional<SizeExpression> parse(std::string_view text);

  /// The symbol that the whole expression is; else empty.
  std::string symbol() const { return kind_ == "Symbol" ? name_ : std::string(); }

  /// The value for these symbols. nullopt for a symbol without a value, an unknown function, or a
  /// value beyond 64 bits.
  std::optional<std::int64_t> value(const Symbols& symbols) const;

  /// The expression for people: "2*s0".
  std::string text() const;

 private:
  friend class ExpressionParser;
  std::string kind_;  // "Integer", "Symbol", "Mul", ...
  std::string name_;
  std::int64_t number_ = 0;
  std::vector<SizeExpression> arguments_;
};

}  // namespace demi::imported
