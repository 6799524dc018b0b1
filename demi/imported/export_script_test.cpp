// scripts/demi_export.py refuses to write what demi refuses to read: its list READER, which is
// JSON, is compared with the errors for files that are changed in one place.
#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "demi/core/memory_file_testing.h"
#include "demi/core/source_dir_testing.h"
#include "demi/imported/fixtures_testing.h"
#include "demi/imported/imported_model.h"
#include "demi/imported/zip_testing.h"

namespace demi::imported {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

const json& listed(const char* kind) {
  static const json list = [] {
    std::ifstream file(source_dir() / "scripts/demi_export.py");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const std::size_t begin = text.find("\nREADER = {") + 10, end = text.find("\n}\n", begin) + 2;
    return json::parse(text.substr(begin, end - begin));
  }();
  return list.at(kind);
}

template <class Value>
bool is_listed(const char* kind, const Value& value) {
  return std::ranges::find(listed(kind), json(value)) != listed(kind).end();
}

/// tiny.pt2: one linear layer of one weight.
struct Parts {
  json module;  // the graph and its signature
  json weight;  // its tensor_meta

  json& node() { return module["graph"]["nodes"][0]; }
  void set_results(const std::string& tree) {
    module["module_call_graph"][0]["signature"]["out_spec"] = "[1, " + tree + "]";
  }
  void add_argument(const std::string& kind, const json& value) {
    node()["inputs"].push_back({{"name", "more"}, {"arg", {{kind, value}}}, {"kind", 1}});
  }
};

/// The error for the file after a change; "" if it is accepted.
template <class Change>
std::string refusal_after(const Change& change) {
  const std::string model = "models/model.json", weights = "data/weights/model_weights_config.json";
  static const Contents whole = contents_of(fixture("tiny.pt2"));
  json program = json::parse(whole.at(model)), config = json::parse(whole.at(weights));
  json& weight = config["config"]["weight"]["tensor_meta"];
  Parts parts{std::move(program["graph_module"]), std::move(weight)};
  change(parts);
  program["graph_module"] = std::move(parts.module);
  weight = std::move(parts.weight);
  Contents contents = whole;
  contents[model] = program.dump();
  contents[weights] = config.dump();
  const MemoryFile file(zip_of(contents));
  try {
    const ImportedModel taken(file.path());
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

std::string refusal_of_argument(const std::string& kind, const json& value) {
  return refusal_after([&](Parts& parts) { parts.add_argument(kind, value); });
}

TEST(ExportScript, KnowsTheDtypes) {
  EXPECT_EQ(refusal_after([](Parts&) {}), "");
  for (int number = 0; number < 48; ++number) {
    const std::string seen = refusal_after([&](Parts& parts) { parts.weight["dtype"] = number; });
    EXPECT_EQ(seen.find("is no dtype") == std::string::npos, is_listed("dtypes", number))
        << number << ' ' << seen;
  }
}

TEST(ExportScript, KnowsLayoutsFormatsAndDevices) {
  for (int number = 0; number < 12; ++number) {
    EXPECT_EQ(refusal_of_argument("as_layout", number).find("is not dense") == std::string::npos,
              is_listed("layouts", number));
    EXPECT_EQ(refusal_of_argument("as_memory_format", number).find("is no memory format") ==
                  std::string::npos,
              is_listed("memory_formats", number));
  }
  for (const char* type : {"cpu", "cuda", "meta", "mps", "xpu", "hpu", "mtia", "privateuseone"})
    EXPECT_EQ(
        refusal_of_argument("as_device", {{"type", type}}).find("is a device") == std::string::npos,
        is_listed("devices", type))
        << type;
}

TEST(ExportScript, KnowsTheKindsOfArguments) {
  for (const std::string kind : listed("arguments"))
    EXPECT_THAT(refusal_of_argument(kind, json::object()), Not(HasSubstr("unknown kind"))) << kind;
  EXPECT_THAT(refusal_of_argument("as_something", json::object()), HasSubstr("unknown kind"));
}

TEST(ExportScript, KnowsTheContainers) {
  const auto refusal_of = [](const std::string& type) {
    return refusal_after([&](Parts& parts) {
      parts.set_results(
          fmt::format(R"({{"type": "{}", "context": "[]", "children_spec": []}})", type));
    });
  };
  for (const std::string type : listed("containers"))
    EXPECT_THAT(refusal_of(type), Not(HasSubstr("is a container"))) << type;
  for (const char* type : {"collections.deque", "collections.defaultdict", "builtins.slice"})
    EXPECT_THAT(refusal_of(type), HasSubstr("is a container")) << type;
}

TEST(ExportScript, KnowsWhatANodeMayCall) {
  const auto refusal_of = [](const std::string& target) {
    return refusal_after([&](Parts& parts) {
      parts.node()["target"] = target;
      parts.node()["inputs"] = json::array();
    });
  };
  for (const std::string name : listed("functions")) EXPECT_EQ(refusal_of(name), "") << name;
  EXPECT_THAT(refusal_of("torch._functorch.predispatch._add_batch_dim"),
              HasSubstr("cannot be run"));
  for (const std::string name : listed("refused_operators"))
    EXPECT_THAT(refusal_of(fmt::format("torch.ops.{}.{}.default", name.substr(0, name.find(':')),
                                       name.substr(name.find("::") + 2))),
                HasSubstr("cannot be run"))
        << name;
  // The message about an unknown operator that takes a graph names the known ones.
  for (const std::string name : listed("higher_order")) {
    EXPECT_THAT(refusal_of("torch.ops.higher_order." + name),
                Not(HasSubstr("wrap_with_set_grad_enabled, wrap_with_autocast")));
    EXPECT_THAT(refusal_of("torch.ops.higher_order.cond"), HasSubstr(name));
  }
}

TEST(ExportScript, KnowsTheNamespacesOfLibTorch) {
  std::set<std::string> known;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames())
    known.insert(name.name.substr(0, name.name.find("::")));
  for (const std::string name : listed("namespaces")) EXPECT_TRUE(known.contains(name)) << name;
}

TEST(ExportScript, KnowsInputsAndOutputs) {
  const auto refusal_of = [](const char* specs, const std::string& kind) {
    return refusal_after([&](Parts& parts) {
      parts.module["signature"][specs].push_back({{kind, json::object()}});
    });
  };
  for (const std::string kind : listed("inputs"))
    EXPECT_THAT(refusal_of("input_specs", kind), Not(HasSubstr("an unknown kind"))) << kind;
  EXPECT_THAT(refusal_of("input_specs", "something"), HasSubstr("an unknown kind"));
  for (const std::string kind : listed("outputs"))
    EXPECT_THAT(refusal_of("output_specs", kind), Not(HasSubstr("not supported"))) << kind;
  EXPECT_THAT(refusal_of("output_specs", "gradient_to_parameter"), HasSubstr("not supported"));
}

TEST(ExportScript, KnowsHowDeepThingsMayBe) {
  const auto after_tree = [](int depth) {
    std::string tree = R"({"type": null, "context": null, "children_spec": []})";
    for (; depth > 0; --depth)
      tree = R"({"type": "builtins.tuple", "context": "null", "children_spec": [)" + tree + "]}";
    return refusal_after([&](Parts& parts) { parts.set_results(tree); });
  };
  EXPECT_EQ(after_tree(listed("deepest_tree")), "");
  EXPECT_THAT(after_tree(listed("deepest_tree").get<int>() + 1), HasSubstr("nested too deep"));

  const auto after_graph = [](int depth) {
    json graph;
    for (; depth > 0; --depth) {
      json outputs = json::array();
      if (!graph.is_null())
        outputs.push_back({{"as_graph", {{"name", "inner"}, {"graph", std::move(graph)}}}});
      graph = {{"inputs", json::array()}, {"nodes", json::array()}};
      graph["outputs"] = std::move(outputs);
      graph["tensor_values"] = json::object();
    }
    return refusal_of_argument("as_graph", {{"name", "outer"}, {"graph", std::move(graph)}});
  };
  EXPECT_THAT(after_graph(listed("deepest_graph")), Not(HasSubstr("nested too deep")));
  EXPECT_THAT(after_graph(listed("deepest_graph").get<int>() + 1), HasSubstr("nested too deep"));

  const auto after_dimensions = [](std::size_t count) {
    return refusal_after([&](Parts& parts) {
      parts.weight["sizes"] = parts.weight["strides"] = json(count, json{{"as_int", 1}});
    });
  };
  EXPECT_EQ(after_dimensions(listed("most_dimensions")), "");
  EXPECT_THAT(after_dimensions(listed("most_dimensions").get<std::size_t>() + 1),
              HasSubstr("too many"));
}

}  // namespace
}  // namespace demi::imported
