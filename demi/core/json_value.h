#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
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

  /// The value's path in the document: "input.size", "nodes[3]". Empty for the document itself.
  const std::string& path() const { return path_; }
  const Json& json() const { return *value_; }
  bool is_null() const { return value_->is_null(); }
  bool is_text() const { return value_->is_string(); }
  bool is_number() const { return value_->is_number(); }

  /// A member, which has to be there.
  JsonValue at(std::string_view name) const {
    if (const Json* member = member_of(name)) return JsonValue(*member, path_of(name));
    throw JsonError(JsonValue(*value_, path_of(name)).place() + " is missing");
  }

  /// An element, which has to be there.
  JsonValue at(std::size_t index) const {
    if (!value_->is_array() || value_->size() <= index)
      is_not(fmt::format("a list of {} or more", index + 1));
    return JsonValue((*value_)[index], fmt::format("{}[{}]", path_, index));
  }

  /// A member. Nothing: it is absent, or null.
  std::optional<JsonValue> find(std::string_view name) const {
    const Json* member = member_of(name);
    if (!member || member->is_null()) return std::nullopt;
    return JsonValue(*member, path_of(name));
  }

  /// A member, or `absent` if there is none.
  template <class T>
  T value(std::string_view name, T absent) const {
    const Json* member = member_of(name);
    return member ? JsonValue(*member, path_of(name)).template get<T>() : absent;
  }

  /// Name and value of an object's only member: one of several kinds.
  std::pair<std::string_view, JsonValue> only() const {
    if (!value_->is_object() || value_->size() != 1) is_not("an object with one member");
    const auto member = value_->begin();
    return {member.key(), JsonValue(*member, path_of(member.key()))};
  }

  /// bool, a whole number that T holds, double, std::string, or a std::vector, std::set or std::map
  /// of such.
  template <class T>
  T get() const {
    if constexpr (std::is_same_v<T, bool>) {
      if (!value_->is_boolean()) is_not("true or false");
      return value_->template get<bool>();
    } else if constexpr (std::is_integral_v<T>) {
      return whole(std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
    } else if constexpr (std::is_floating_point_v<T>) {
      if (!value_->is_number()) is_not("a number");
      return value_->template get<T>();
    } else if constexpr (std::is_same_v<T, std::string>) {
      return text();
    } else if constexpr (requires { typename T::mapped_type; }) {
      T all;
      members([&all](const std::string& name, const JsonValue& one) {
        all.emplace(name, one.template get<typename T::mapped_type>());
      });
      return all;
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

  const std::string& text() const {
    if (!value_->is_string()) is_not("a text");
    return value_->template get_ref<const std::string&>();
  }

  template <class T>
  T whole(T least, T most) const {
    const auto fits = [&](auto number) {
      return std::cmp_greater_equal(number, least) && std::cmp_less_equal(number, most);
    };
    if (value_->is_number_unsigned()
            ? !fits(value_->template get<std::uint64_t>())
            : !value_->is_number_integer() || !fits(value_->template get<std::int64_t>()))
      is_not(fmt::format("a whole number from {} to {}", least, most));
    return value_->template get<T>();
  }

  /// Number of elements of a list.
  std::size_t size() const {
    if (!value_->is_array()) is_not("a list");
    return value_->size();
  }

  /// Calls use(JsonValue) for each element of a list.
  template <class Use>
  void each(const Use& use) const {
    for (std::size_t i = 0, count = size(); i < count; ++i) use(at(i));
  }

  /// Calls use(name, JsonValue) for each member of an object.
  template <class Use>
  void members(const Use& use) const {
    require_object();
    for (auto member = value_->begin(); member != value_->end(); ++member)
      use(member.key(), JsonValue(*member, path_of(member.key())));
  }

  /// Throws "input.size is odd; seen: 3; accepted: an even one".
  [[noreturn]] void refuse(std::string_view what, std::string_view accepted) const {
    throw JsonError(
        fmt::format("{} {}; seen: {}; accepted: {}", place(), what, excerpt(), accepted));
  }

 private:
  void require_object() const {
    if (!value_->is_object()) is_not("an object");
  }

  const Json* member_of(std::string_view name) const {
    require_object();
    const auto found = value_->find(std::string(name));
    return found == value_->end() ? nullptr : &*found;
  }

  std::string path_of(std::string_view name) const {
    return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
  }

  /// The path, of a long one the end, without control characters.
  std::string place() const {
    constexpr std::size_t kMost = 200;
    if (path_.empty()) return "the document";
    const nlohmann::json end =
        path_.size() > kMost ? "..." + path_.substr(path_.size() - kMost) : path_;
    const std::string quoted = end.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return quoted.substr(1, quoted.size() - 2);
  }

  std::string excerpt() const {
    constexpr std::size_t kMost = 100;
    return json_excerpt(value_->dump(), kMost);
  }

  [[noreturn]] void is_not(const std::string& accepted) const {
    throw JsonError(fmt::format("{} is {}, not {}", place(), excerpt(), accepted));
  }

  const Json* value_;
  std::string path_;
};

}  // namespace demi
