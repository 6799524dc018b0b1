#include "demi/imported/arguments.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "demi/core/error.h"

namespace demi::imported {
namespace {

using c10::IValue;

constexpr std::string_view kForward = "imported.forward";

std::string text_of(const TreeSpec::Key& key) {
  if (const auto* text = std::get_if<std::string>(&key)) return *text;
  return std::to_string(std::get<std::int64_t>(key));
}

IValue value_of(const TreeSpec::Key& key) {
  if (const auto* text = std::get_if<std::string>(&key)) return IValue(*text);
  return IValue(std::get<std::int64_t>(key));
}

[[noreturn]] void refuse_container(const std::string& name, const IValue& seen,
                                   const std::string& accepted) {
  refuse(
      {.where = kForward,
       .what = fmt::format("the argument {} is of another form than in the exported network", name),
       .seen = seen.tagKind(),
       .accepted = accepted,
       .advice = "give it as Python's forward takes it"});
}

Values elements_of(const IValue& value) {
  if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    return Values(elements.begin(), elements.end());
  }
  const c10::List<IValue> list = value.toList();
  return Values(list.begin(), list.end());
}

void flatten(const TreeSpec& spec, const IValue& value, const std::string& name, Values& leaves) {
  const std::size_t count = spec.children.size();
  switch (spec.kind) {
    case TreeSpec::Kind::leaf:
      leaves.push_back(value);
      return;
    case TreeSpec::Kind::tuple:
    case TreeSpec::Kind::list: {
      const Values elements = value.isTuple() || value.isList() ? elements_of(value) : Values();
      if (elements.size() != count || !(value.isTuple() || value.isList()))
        refuse_container(name, value, fmt::format("a tuple or list of {}", count));
      for (std::size_t i = 0; i < count; ++i)
        flatten(spec.children[i], elements[i], fmt::format("{}[{}]", name, i), leaves);
      return;
    }
    case TreeSpec::Kind::dict: {
      if (!value.isGenericDict() || value.toGenericDict().size() != count)
        refuse_container(name, value, fmt::format("a dict of {}", count));
      const c10::impl::GenericDict dict = value.toGenericDict();
      for (std::size_t i = 0; i < count; ++i) {
        const auto entry = dict.find(value_of(spec.keys[i]));
        if (entry == dict.end())
          refuse_container(name, value, "a dict with " + text_of(spec.keys[i]));
        flatten(spec.children[i], entry->value(), name + "." + text_of(spec.keys[i]), leaves);
      }
      return;
    }
  }
}

/// Takes the arguments of a call one by one, in the order of forward's signature.
class Call {
 public:
  Call(const std::vector<std::string>& names, const std::vector<IValue>& arguments,
       const std::map<std::string, IValue>& keywords)
      : names_(names), arguments_(arguments), keywords_(keywords) {}

  std::string name_at(std::size_t place) const {
    return place < names_.size() ? names_[place] : fmt::format("number {}", place);
  }

  const IValue& positional(std::size_t place) {
    if (place < arguments_.size()) return arguments_[place];
    return keyword(name_at(place));
  }

  const IValue& keyword(const std::string& name) {
    const auto found = keywords_.find(name);
    require(found != keywords_.end(), {.where = kForward,
                                       .what = "an argument is missing",
                                       .seen = fmt::format("{} arguments", arguments_.size()),
                                       .accepted = "one for " + name,
                                       .advice = "give it by place or by name"});
    used_.insert(name);
    return found->second;
  }

  void finish(std::size_t positional) const {
    const std::string names = fmt::format("{}", fmt::join(names_, ", "));
    require(
        arguments_.size() <= positional,
        {.where = kForward,
         .what = "there are more arguments than the exported network takes",
         .seen = fmt::to_string(arguments_.size()),
         .accepted = fmt::format("{} ({})", positional, names),
         .advice = "what Python's forward may take, but was not given at the export, is fixed"});
    for (const auto& [name, value] : keywords_)
      require(used_.contains(name),
              {.where = kForward,
               .what = "the exported network has no such argument, or it was given by place",
               .seen = name,
               .accepted = names,
               .advice = "give it at the export, too"});
  }

 private:
  const std::vector<std::string>& names_;
  const std::vector<IValue>& arguments_;
  const std::map<std::string, IValue>& keywords_;
  std::set<std::string> used_;
};

IValue make_list(const Values& elements) {
  const bool are_tensors =
      std::ranges::all_of(elements, [](const IValue& value) { return value.isTensor(); });
  c10::impl::GenericList list(are_tensors ? c10::TypePtr(c10::TensorType::get())
                                          : c10::TypePtr(c10::AnyType::get()));
  for (const IValue& element : elements) list.push_back(element);
  return list;
}

IValue make_dict(const TreeSpec& spec, const Values& elements) {
  const bool has_texts = std::ranges::all_of(
      spec.keys, [](const TreeSpec::Key& key) { return std::holds_alternative<std::string>(key); });
  const bool has_numbers = std::ranges::none_of(
      spec.keys, [](const TreeSpec::Key& key) { return std::holds_alternative<std::string>(key); });
  require(has_texts || has_numbers, {.where = kForward,
                                     .what = "a dict of the result has texts and numbers as keys",
                                     .accepted = "keys of one kind"});
  c10::impl::GenericDict dict(
      has_texts ? c10::TypePtr(c10::StringType::get()) : c10::TypePtr(c10::IntType::get()),
      c10::AnyType::get());
  for (std::size_t i = 0; i < elements.size(); ++i)
    dict.insert(value_of(spec.keys[i]), elements[i]);
  return dict;
}

IValue build(const TreeSpec& spec, Values::const_iterator& next) {
  if (spec.kind == TreeSpec::Kind::leaf) return *next++;
  Values elements;
  for (const TreeSpec& child : spec.children) elements.push_back(build(child, next));
  if (spec.kind == TreeSpec::Kind::list) return make_list(elements);
  if (spec.kind == TreeSpec::Kind::dict) return make_dict(spec, elements);
  return c10::ivalue::Tuple::create(std::move(elements));
}

}  // namespace

Values flatten_arguments(const TreeSpec& in_spec, const std::vector<std::string>& names,
                         const std::vector<IValue>& arguments,
                         const std::map<std::string, IValue>& keywords) {
  const TreeSpec &positional = in_spec.children.at(0), &by_name = in_spec.children.at(1);
  Call call(names, arguments, keywords);
  Values leaves;
  for (std::size_t i = 0; i < positional.children.size(); ++i)
    flatten(positional.children[i], call.positional(i), call.name_at(i), leaves);
  for (std::size_t i = 0; i < by_name.children.size(); ++i) {
    const std::string name = text_of(by_name.keys[i]);
    flatten(by_name.children[i], call.keyword(name), name, leaves);
  }
  call.finish(positional.children.size());
  return leaves;
}

IValue unflatten(const TreeSpec& out_spec, const Values& leaves) {
  auto next = leaves.begin();
  return build(out_spec, next);
}

}  // namespace demi::imported
