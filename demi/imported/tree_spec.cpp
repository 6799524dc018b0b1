#include "demi/imported/tree_spec.h"

#include <fmt/format.h>

#include <optional>

namespace demi::imported {
namespace {

constexpr int kDeepestTree = 64;
constexpr std::string_view kContainers = "tuple, list, dict, OrderedDict and namedtuple";

std::optional<TreeSpec::Kind> kind_named(std::string_view type) {
  if (type == "builtins.tuple" || type == "collections.namedtuple") return TreeSpec::Kind::tuple;
  if (type == "builtins.list" || type == "torch.fx.immutable_collections.immutable_list")
    return TreeSpec::Kind::list;
  if (type == "builtins.dict" || type == "collections.OrderedDict" ||
      type == "torch.fx.immutable_collections.immutable_dict")
    return TreeSpec::Kind::dict;
  return std::nullopt;
}

std::vector<TreeSpec::Key> read_keys(const Field& context) {
  const nlohmann::json keys = read_json(context.text());
  std::vector<TreeSpec::Key> result;
  Field(keys, context.path()).each([&](const Field& key) {
    if (key.is_text())
      result.emplace_back(key.text());
    else
      result.emplace_back(key.get<std::int64_t>());
  });
  return result;
}

TreeSpec read_tree(const Field& field, int depth) {
  if (depth > kDeepestTree) field.refuse("is nested too deep", "at most 64 containers");
  const std::optional<Field> type = field.find("type");
  const Field children = field.at("children_spec");
  if (!type) {
    if (children.size() != 0) children.refuse("belong to no container", "none");
    return {};
  }
  const std::optional<TreeSpec::Kind> kind = kind_named(type->text());
  if (!kind)
    type->refuse("is a container that cannot be taken or returned here",
                 fmt::format("{}: let forward take and return these", kContainers));
  TreeSpec tree{.kind = *kind, .leaves = 0};
  if (*kind == TreeSpec::Kind::dict) tree.keys = read_keys(field.at("context"));
  children.each([&](const Field& child) {
    tree.children.push_back(read_tree(child, depth + 1));
    tree.leaves += tree.children.back().leaves;
  });
  if (*kind == TreeSpec::Kind::dict && tree.keys.size() != tree.children.size())
    children.refuse("are not as many as the keys", fmt::format("{} of them", tree.keys.size()));
  return tree;
}

}  // namespace

TreeSpec parse_tree_spec(const Field& text) {
  const nlohmann::json document = read_json(text.text());
  const Field field(document, text.path());
  if (field.size() != 2 || field.at(0).get<std::int64_t>() != 1)
    field.refuse("is of another version", "[1, {...}]");
  return read_tree(field.at(1), 0);
}

}  // namespace demi::imported
