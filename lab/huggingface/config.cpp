#include "lab/huggingface/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>

#include "demi/core/json_value.h"
#include "demi/tensor/dtype.h"
#include "lab/huggingface/json_file.h"

namespace demi::huggingface {
namespace {

using models::GPTForm;
using models::GPTOptions;
using nlohmann::json;

/// The entries of config.json; null counts as absent, as in transformers.
class Entries {
 public:
  explicit Entries(const JsonValue<>& all) : all_(all) {}

  std::string text(const char* name) const {
    const auto value = all_.find(name);
    return value ? value->text() : "";
  }

  int64_t whole(const char* name, int64_t absent) const {
    const auto value = all_.find(name);
    return value ? value->whole(int64_t{1}, int64_t{1} << 31) : absent;
  }

  double real(const char* name, double absent, double least = 0) const {
    const auto value = all_.find(name);
    if (!value) return absent;
    const double real = value->get<double>();
    if (!(real >= least) || !std::isfinite(real))
      value->refuse("is out of range", fmt::format("{} or more", least));
    return real;
  }

  bool flag(const char* name, bool absent) const {
    const auto value = all_.find(name);
    return value ? value->get<bool>() : absent;
  }

  /// Throws unless the entry is absent or one of these.
  void want(const char* name, std::initializer_list<json> accepted) const {
    const auto value = all_.find(name);
    if (!value || std::ranges::find(accepted, value->json()) != accepted.end()) return;
    std::string list;
    for (const json& one : accepted) list += (list.empty() ? "" : ", ") + one.dump();
    value->refuse("is none that demi can follow", list.empty() ? "null, or no such entry" : list);
  }

  std::optional<Entries> inside(const char* name) const {
    const auto value = all_.find(name);
    return value ? std::optional<Entries>(*value) : std::nullopt;
  }

 private:
  JsonValue<> all_;
};

/// The defaults are those of transformers' configuration_gpt2.py and configuration_llama.py.
GPTOptions gpt2_options(const Entries& entries) {
  entries.want("activation_function", {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"});
  entries.want("scale_attn_weights", {true});
  entries.want("scale_attn_by_inverse_layer_idx", {false});
  entries.want("add_cross_attention", {false});
  const int64_t width = entries.whole("n_embd", 768), inner = entries.whole("n_inner", 4 * width);
  return {.vocabulary = entries.whole("vocab_size", 50257),
          .context = entries.whole("n_positions", 1024),
          .width = width,
          .layers = entries.whole("n_layer", 12),
          .heads = entries.whole("n_head", 12),
          .hidden = inner,
          .form = GPTForm::gpt2,
          .eps = entries.real("layer_norm_epsilon", 1e-5),
          .tied_head = entries.flag("tie_word_embeddings", true)};
}

/// rope_theta, or what transformers 5 writes in its place: rope_parameters.
double rope_theta_of(const Entries& entries) {
  double theta = entries.real("rope_theta", 10000, 1);
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    const auto rope = entries.inside(name);
    if (!rope) continue;
    rope->want("rope_type", {"default"});
    rope->want("type", {"default"});
    rope->want("partial_rotary_factor", {1.0});
    theta = rope->real("rope_theta", theta, 1);
  }
  return theta;
}

GPTOptions llama_options(const Entries& entries) {
  entries.want("hidden_act", {"silu", "swish"});
  entries.want("attention_bias", {false});
  entries.want("mlp_bias", {false});
  entries.want("partial_rotary_factor", {1.0});
  const int64_t width = entries.whole("hidden_size", 4096),
                heads = entries.whole("num_attention_heads", 32);
  entries.want("head_dim", {width / heads});
  return {.vocabulary = entries.whole("vocab_size", 32000),
          .context = entries.whole("max_position_embeddings", 2048),
          .width = width,
          .layers = entries.whole("num_hidden_layers", 32),
          .heads = heads,
          .key_heads = entries.whole("num_key_value_heads", heads),
          .hidden = entries.whole("intermediate_size", 11008),
          .form = GPTForm::llama,
          .eps = entries.real("rms_norm_eps", 1e-6),
          .rope_theta = rope_theta_of(entries),
          .tied_head = entries.flag("tie_word_embeddings", false)};
}

void require_heads(const GPTOptions& o, const Wrong& wrong) {
  const int64_t key_heads = o.key_heads == 0 ? o.heads : o.key_heads;
  if (o.width % o.heads != 0)
    wrong("the heads do not divide the width", fmt::format("{} heads, width {}", o.heads, o.width),
          "a divisor");
  if (o.heads % key_heads != 0)
    wrong("the key heads do not divide the heads", fmt::format("{} of {}", key_heads, o.heads),
          "a divisor");
  if (o.form == GPTForm::llama && o.width / o.heads % 2 != 0)
    wrong("rotary positions turn pairs, and the size of a head is odd",
          fmt::to_string(o.width / o.heads), "an even one");
}

json gpt2_json(const GPTOptions& o) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"activation_function", "gelu_new"},
          {"vocab_size", o.vocabulary},
          {"n_positions", o.context},
          {"n_ctx", o.context},
          {"n_embd", o.width},
          {"n_layer", o.layers},
          {"n_head", o.heads},
          {"n_inner", hidden_width(o)},
          {"layer_norm_epsilon", o.eps},
          {"resid_pdrop", o.dropout},
          {"embd_pdrop", o.dropout},
          {"attn_pdrop", o.dropout},
          {"tie_word_embeddings", o.tied_head.value_or(true)}};
}

// rope_theta is for transformers 4, rope_parameters for 5.
json llama_json(const GPTOptions& o) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"vocab_size", o.vocabulary},
          {"max_position_embeddings", o.context},
          {"hidden_size", o.width},
          {"intermediate_size", hidden_width(o)},
          {"num_hidden_layers", o.layers},
          {"num_attention_heads", o.heads},
          {"num_key_value_heads", o.key_heads == 0 ? o.heads : o.key_heads},
          {"head_dim", o.width / o.heads},
          {"rms_norm_eps", o.eps},
          {"rope_theta", o.rope_theta},
          {"rope_scaling", nullptr},
          {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", o.rope_theta}}},
          {"tie_word_embeddings", o.tied_head.value_or(false)}};
}

/// An entry that the source lacks has transformers' default there, and so it has here.
void keep_tokens(json& config, const json& source, bool has_end) {
  for (const char* name : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (source.contains(name))
      config[name] = source[name];
    else if (!has_end)
      config.erase(name);
  }
}

void require_form(const GPTOptions& o) {
  const bool is_gpt2 = o.form == GPTForm::gpt2, is_llama = o.form == GPTForm::llama;
  const bool shares = o.key_heads != 0 && o.key_heads != o.heads;
  if (is_llama || (is_gpt2 && !shares)) return;
  refuse({.where = "huggingface.write_model",
          .what = "transformers has no such model among GPT-2 and Llama",
          .seen = is_gpt2 ? "gpt2 with shared key heads" : "nanochat",
          .accepted = "blocks gpt2, with as many key heads as heads, and llama"});
}

}  // namespace

GPTOptions read_config(const std::filesystem::path& file) {
  const Wrong wrong{file};
  const json document = read_object(file);
  try {
    const Entries entries{JsonValue<>(document)};
    entries.want("quantization_config", {});
    const std::string type = entries.text("model_type");
    if (type != "gpt2" && type != "llama")
      wrong("demi has no such model", type.empty() ? "no model_type" : type,
            "model_type gpt2 or llama");
    const GPTOptions options = type == "gpt2" ? gpt2_options(entries) : llama_options(entries);
    require_heads(options, wrong);
    return options;
  } catch (const JsonError& error) {
    wrong(error.what(), "", "");
  }
}

std::string write_config(const GPTOptions& options, c10::ScalarType dtype, int64_t end,
                         const std::filesystem::path& source) {
  require_form(options);
  json config = options.form == GPTForm::gpt2 ? gpt2_json(options) : llama_json(options);
  // "float32": as torch has it after its dot.
  const std::string name = dtype == c10::kFloat      ? "float32"
                           : dtype == c10::kBFloat16 ? "bfloat16"
                           : dtype == c10::kDouble   ? "float64"
                                                     : "float16";
  config["torch_dtype"] = config["dtype"] = name;
  // The defaults are tokens of other vocabularies.
  config["bos_token_id"] = config["eos_token_id"] = end < 0 ? json() : json(end);
  config["pad_token_id"] = nullptr;
  if (!source.empty()) keep_tokens(config, read_object(source / "config.json"), end >= 0);
  config["use_cache"] = true;
  return config.dump(2) + "\n";
}

}  // namespace demi::huggingface
