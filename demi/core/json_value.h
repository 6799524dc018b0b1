#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "demi/core/json.h"

namespace demi {

/// A value of a document that read_json made, with its path for messages. nlohmann's own get()
/// makes 2 of 2.5, and 4294967295 of -1. Everything throws JsonError: "input.size is 2.5, not a
/// whole number from ...". Refers to the document.
template <class Json = nlohmann::json>
class JsonValue {
 public:
  explicit JsonValue(const Json& value, std::string path = "")
      : value_(&value), path_(std::move(path)) {}

  /// A member, which has to be there.
  JsonValue at(const std::string& name) const {
    const JsonValue found = find(name);
    if (!found.value_) throw JsonError(found.path_ + " is missing");
    return found;
  }

  /// An element, which has to be there.
  JsonValue at(std::size_t index) const {
    want(value_->is_array() && value_->size() > index,
         fmt::format("a list of {} or more", index + 1));
    return JsonValue((*value_)[index], fmt::format("{}[{}]", path_, index));
  }

  /// A member, or what stands for one that is absent.
  template <class T>
  T value(const std::string& name, T absent) const {
    const JsonValue found = find(name);
    return found.value_ ? found.template get<T>() : absent;
  }

  /// bool, a whole number that T holds, double, std::string, or a std::vector or std::set of such.
  template <class T>
  T get() const {
    if constexpr (std::is_same_v<T, bool>) {
      want(value_->is_boolean(), "true or false");
      return value_->template get<bool>();
    } else if constexpr (std::is_integral_v<T>) {
      using Limits = std::numeric_limits<T>;
      want(is_whole<T>(),
           fmt::format("a whole number from {} to {}", Limits::min(), Limits::max()));
      return value_->template get<T>();
    } else if constexpr (std::is_floating_point_v<T>) {
      want(value_->is_number(), "a number");
      return value_->template get<T>();
    } else if constexpr (std::is_same_v<T, std::string>) {
      want(value_->is_string(), "a text");
      return value_->template get<std::string>();
    } else {
      T all;
      each([&all](const JsonValue& one) {
        all.insert(all.end(), one.template get<typename T::value_type>());
      });
      return all;
    }
  }

  template <class T>
  void get_to(T& to) const {
    to = get<T>();
  }

  /// Calls use(JsonValue) for each element of a list.
  template <class Use>
  void each(const Use& use) const {
    want(value_->is_array(), "a list");
    for (std::size_t i = 0; i < value_->size(); ++i) use(at(i));
  }

 private:
  JsonValue(std::nullptr_t, std::string path) : value_(nullptr), path_(std::move(path)) {}

  JsonValue find(const std::string& name) const {
    want(value_->is_object(), "an object");
    const std::string path = path_.empty() ? name : fmt::format("{}.{}", path_, name);
    const auto found = value_->find(name);
    return found == value_->end() ? JsonValue(nullptr, path) : JsonValue(*found, path);
  }

  template <class T>
  bool is_whole() const {
    if (value_->is_number_unsigned())
      return std::in_range<T>(value_->template get<std::uint64_t>());
    return value_->is_number_integer() && std::in_range<T>(value_->template get<std::int64_t>());
  }

  void want(bool is_so, const std::string& accepted) const {
    constexpr std::size_t kMost = 100;
    if (is_so) return;
    throw JsonError(fmt::format("{} is {}, not {}", path_.empty() ? "the document" : path_,
                                json_excerpt(value_->dump(), kMost), accepted));
  }

  const Json* value_;
  std::string path_;
};

}  // namespace demi
