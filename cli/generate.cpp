#include "lab/generate/generate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/literal_arguments.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/stop.h"
#include "demi/core/error.h"
#include "lab/report/format.h"
#include "lab/report/terminal.h"
#include "lab/tokens/utf8_stream.h"

namespace demi::cli {
namespace {

using Json = nlohmann::ordered_json;
using generate::Model;

struct GenerateArguments {
  std::string file, precision = "fp32", device = "auto";
  std::optional<std::string> prompt, prompt_tokens;
  generate::Options options;
  int64_t samples = 1, seed = 1337;
  bool no_cache = false;
  Output output;
};

/// Writes tokens as text as they come, in whole characters; as numbers if there is no tokenizer.
class Writer {
 public:
  explicit Writer(const Model& model) : tokenizer_(model.tokenizer.get()) {}

  std::string add(int32_t token) {
    if (tokenizer_) return stream_.add(tokenizer_->decode({&token, 1}));
    return fmt::format("{}{}", std::exchange(is_first_, false) ? "" : " ", token);
  }
  std::string finish() { return stream_.finish(); }

 private:
  const tokens::Tokenizer* tokenizer_;
  tokens::Utf8Stream stream_;
  bool is_first_ = true;
};

/// A terminal is shown no control characters but line ends and tabs: a model may write any bytes.
std::string shown(const std::string& text) {
  static const bool is_terminal = isatty(STDOUT_FILENO) == 1;
  if (!is_terminal) return text;
  std::string all, between;
  const auto flush = [&] { all += report::printable(std::exchange(between, {}), /*utf8=*/true); };
  for (const char c : text) {
    if (c != '\n' && c != '\t') {
      between += c;
      continue;
    }
    flush();
    all += c;
  }
  flush();
  return all;
}

struct Written {
  std::vector<int32_t> tokens;
  std::string text;
  double seconds = 0;
};

/// `print` is called with the text as it is made; false ends it, as does a signal.
template <class Print>
Written write_one(const Model& model, const std::vector<int32_t>& prompt, int64_t sample,
                  const GenerateArguments& a, Writer& writer, const Print& print) {
  Written one;
  generate::Options options = a.options;
  options.sample = sample;
  options.cache = !a.no_cache;
  const auto start = std::chrono::steady_clock::now();
  generate::write(model, prompt, options, [&](int32_t token) {
    one.tokens.push_back(token);
    const std::string more = writer.add(token);
    one.text += more;
    return print(more) && stop_signal() == 0;
  });
  one.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::string rest = writer.finish();
  one.text += rest;
  print(rest);
  return one;
}

void stop_if_asked() {
  if (const int signal = stop_signal()) throw Exit{kStoppedBySignal + signal};
}

void print_texts(const GenerateArguments& a, const Model& model, const std::vector<int32_t>& prompt,
                 bool shows_prompt) {
  const auto print = [](const std::string& text) {
    Output::print_lines(shown(text));
    return std::cout.good();
  };
  for (int64_t sample = 0; sample < a.samples && std::cout.good(); ++sample) {
    Writer writer(model);
    if (sample > 0) print("---------------\n");
    std::string before;
    for (const int32_t token : prompt) before += shows_prompt ? writer.add(token) : "";
    print(before);
    write_one(model, prompt, sample, a, writer, print);
    print("\n");
    stop_if_asked();
  }
}

Json json_of(const Written& one) {
  return {{"text", one.text},
          {"tokens", one.tokens},
          {"seconds", one.seconds},
          {"tokens_per_second", static_cast<double>(one.tokens.size()) / one.seconds}};
}

void print_json(const GenerateArguments& a, const Model& model,
                const std::vector<int32_t>& prompt) {
  Writer of_prompt(model);
  std::string text;
  for (const int32_t token : prompt) text += of_prompt.add(token);
  Json json{{"file", a.file},
            {"precision", model.run.spec.label},
            {"prompt", text + of_prompt.finish()},
            {"prompt_tokens", prompt},
            {"temperature", a.options.sampling.temperature},
            {"top_k", a.options.sampling.top_k},
            {"seed", a.options.sampling.seed},
            {"samples", Json::array()}};
  for (int64_t sample = 0; sample < a.samples && stop_signal() == 0; ++sample) {
    Writer writer(model);
    json["samples"].push_back(json_of(
        write_one(model, prompt, sample, a, writer, [](const std::string&) { return true; })));
  }
  Output::print(json);
  stop_if_asked();
}

void check_arguments(const GenerateArguments& a) {
  check(a.options.sampling);
  if (a.prompt && a.prompt_tokens)
    throw UsageError({.where = "--prompt-tokens",
                      .what = "one of --prompt and --prompt-tokens",
                      .seen = "both"});
  const auto require_least = [](const char* option, int64_t value, int64_t least) {
    if (value < least)
      throw UsageError({.where = option,
                        .what = "out of range",
                        .seen = fmt::to_string(value),
                        .accepted = fmt::format("{} or more", least)});
  };
  require_least("--length", a.options.length, 1);
  require_least("--samples", a.samples, 1);
  require_least("--seed", a.seed, 0);
}

void generate_texts(const GenerateArguments& a) {
  check_arguments(a);
  const std::string prompt =
      text_of_prompt(a.prompt_tokens ? *a.prompt_tokens : a.prompt.value_or(""), std::cin);
  const Model model = generate::load_model(a.file, a.precision, a.device);
  const std::vector<int32_t> tokens =
      a.prompt_tokens ? generate::parse_tokens(model, prompt) : generate::tokens_of(model, prompt);
  note_slow_precisions({model.run.spec}, model.run.device);
  if (std::ssize(tokens) > model.context())
    note(fmt::format("the model reads {} tokens at most: the last of the prompt's {}",
                     report::format_count(model.context()),
                     report::format_count(std::ssize(tokens))));
  const NoteStopSignals signals;
  if (a.output.is_json())
    print_json(a, model, tokens);
  else
    print_texts(a, model, tokens, !prompt.empty());
}

}  // namespace

void add_generate(CLI::App& app) {
  auto* command = app.add_subcommand("generate", "Text that a saved language model writes");
  const auto a = std::make_shared<GenerateArguments>();
  generate::Sampling& sampling = a->options.sampling;
  command
      ->add_option("FILE", a->file,
                   "Model file (a run folder's ...model.safetensors), checkpoint, run folder, or a "
                   "folder of Hugging Face's")
      ->required();
  // Kept by hand: newer versions of CLI11 read an empty text into an optional as none.
  const auto add_text = [command](const char* name, std::optional<std::string>& text,
                                  const char* help) {
    const auto keep = [&text](const CLI::results_t& given) {
      text = literal(given.back());
      return true;
    };
    command->add_option(name, keep, help)->type_name("TEXT");
  };
  add_text("--prompt", a->prompt,
           "Text to go on from; @FILE is a file's, - that of standard input [a line's end]");
  add_text("--prompt-tokens", a->prompt_tokens,
           "Tokens to go on from, as 464,3290, for files without a tokenizer; @FILE, -");
  command->add_option("--length", a->options.length, "Number of tokens to write")
      ->capture_default_str();
  command
      ->add_option("--temperature", sampling.temperature,
                   "Divides the logits: below 1 likelier tokens; 0: always the likeliest")
      ->capture_default_str();
  command
      ->add_option("--top-k", sampling.top_k,
                   "Number of the likeliest tokens that may come; more than there are: all")
      ->capture_default_str();
  command->add_option("--seed", a->seed, "Seed of the random numbers")->capture_default_str();
  command->add_option("--samples", a->samples, "Number of texts")->capture_default_str();
  command->add_option("--precision", a->precision, "Precision to compute in")
      ->capture_default_str();
  add_device_option(*command, a->device);
  command->add_flag("--no-cache", a->no_cache,
                    "Compute keys and values of all tokens again for each new one");
  a->output.add_to(*command);
  command->callback([a] {
    a->file = literal(a->file);
    a->options.sampling.seed = static_cast<uint64_t>(a->seed);
    generate_texts(*a);
  });
}

}  // namespace demi::cli
