#include "demi/core/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <utility>
#include <vector>

namespace demi {
std::string json_excerpt(std::string_view text, std::size_t most) {
  using nlohmann::json;
  const json cut = fmt::format("{}{}", text.substr(0, most), text.size() > most ? "..." : "");
  return json::parse(cut.dump(-1, ' ', false, json::error_handler_t::replace)).get<std::string>();
}

namespace {

/// Makes a document of the parser's events.
template <class Json>
class Builder {
 public:
  explicit Builder(Json& document) : document_(document) {}

  bool null() { return put(nullptr); }
  bool boolean(bool truth) { return put(truth); }
  bool number_integer(std::int64_t number) { return put(number); }
  bool number_unsigned(std::uint64_t number) { return put(number); }
  bool number_float(double number, const std::string&) { return put(number); }
  bool string(std::string& text) { return put(std::move(text)); }
  bool binary(typename Json::binary_t&) { return fail("no value of JSON"); }

  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    Open& object = open_.back();
    object.name = name;
    auto& members = object.value->template get_ref<typename Json::object_t&>();
    if (std::is_same_v<Json, nlohmann::ordered_json> && members.size() >= kMostOrderedMembers)
      fail(fmt::format("an object with more than {} members", kMostOrderedMembers));
    const auto [member, is_new] = members.emplace(name, Json());
    if (!is_new) fail("the name stands twice in its object");
    object.member = &member->second;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) {
    constexpr std::size_t kMost = 300;
    std::string_view what = error.what();  // "[json.exception.parse_error.101] parse error at ..."
    what.remove_prefix(std::min(what.find("] ") + 2, what.size()));
    return fail(fmt::format("{} (offset {})", json_excerpt(what, kMost),
                            position - std::min<std::size_t>(position, 1)));
  }

 private:
  /// A list or an object that has not ended.
  struct Open {
    Json* value;
    std::string name = {};   // of an object: its last member's
    Json* member = nullptr;  // which
  };

  template <class Value>
  bool put(Value&& value) {
    next() = Json(std::forward<Value>(value));
    return true;
  }

  bool open(Json empty) {
    if (open_.size() >= kDeepestJson)
      throw JsonError(fmt::format("lists and objects more than {} deep", kDeepestJson));
    Json& place = next();
    place = std::move(empty);
    open_.push_back({&place});
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  /// The place of the next value.
  Json& next() {
    if (open_.empty()) return document_;
    const Open& inside = open_.back();
    if (inside.member) return *inside.member;
    return inside.value->template get_ref<typename Json::array_t&>().emplace_back();
  }

  std::string path() const {
    constexpr std::size_t kMostNames = 8, kMost = 100;
    std::string path = open_.size() > kMostNames ? "..." : "";
    for (std::size_t i = open_.size() - std::min(open_.size(), kMostNames); i < open_.size(); ++i) {
      const Open& inside = open_[i];
      const bool is_last = i + 1 == open_.size();
      if (inside.value->is_array())
        path += fmt::format("[{}]", inside.value->size() - (is_last ? 0 : 1));
      else if (inside.member || !inside.name.empty())
        path.append(path.empty() ? "" : ".").append(json_excerpt(inside.name, kMost));
    }
    return path;
  }

  bool fail(const std::string& what) const {  // returns never
    const std::string where = path();
    throw JsonError(where.empty() ? what : fmt::format("{}: {}", where, what));
  }

  Json& document_;
  std::vector<Open> open_;
};

template <class Json>
Json read_as(std::string_view text, std::size_t most_bytes) {
  if (text.size() > most_bytes) throw JsonError(fmt::format("more than {} bytes", most_bytes));
  // nlohmann's parser takes a NUL for the end of the text.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos)
    throw JsonError(fmt::format(
        "a NUL (offset {}), as UTF-16 has them: iconv -f UTF-16 -t UTF-8 makes UTF-8", nul));
  Json document;
  Builder<Json> builder(document);
  Json::sax_parse(text, &builder);
  return document;
}

}  // namespace

nlohmann::json read_json(std::string_view text, std::size_t most_bytes) {
  return read_as<nlohmann::json>(text, most_bytes);
}

nlohmann::ordered_json read_ordered_json(std::string_view text, std::size_t most_bytes) {
  return read_as<nlohmann::ordered_json>(text, most_bytes);
}

std::optional<std::string> json_text(const std::filesystem::path& file, std::size_t most_bytes) {
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  if (!in) return std::nullopt;
  std::string text;
  char block[1 << 16];
  do {
    in.read(block, sizeof block);
    text.append(block, static_cast<std::size_t>(in.gcount()));
  } while (in && text.size() <= most_bytes);
  if (in.bad()) return std::nullopt;
  return text.substr(0, most_bytes + 1);
}

}  // namespace demi
