#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/output.h"
#include "demi/core/error.h"
#include "lab/report/format.h"
#include "lab/workload/huggingface_file.h"

namespace demi::cli {
namespace {

struct ExportArguments {
  std::string file, folder, dtype = "as-it-is";
  double shard_gigabytes = 5;
  Output output;
};

std::optional<c10::ScalarType> dtype_of(const std::string& name) {
  if (name == "as-it-is") return std::nullopt;
  if (name == "fp32") return c10::kFloat;
  if (name == "fp16") return c10::kHalf;
  if (name == "bf16") return c10::kBFloat16;
  throw UsageError({.where = "--dtype",
                    .what = "no such dtype",
                    .seen = name,
                    .accepted = "as-it-is, fp32, fp16, bf16"});
}

int64_t shard_bytes_of(double gigabytes) {
  constexpr double kBytes = 1e9, kMost = 1e6;
  if (!(gigabytes >= 1e-6 && gigabytes <= kMost))
    throw UsageError({.where = "--shard-size",
                      .what = "out of range",
                      .seen = fmt::format("{:g}", gigabytes),
                      .accepted = "1e-6 to 1e6, in GB"});
  return std::llround(gigabytes * kBytes);
}

void export_model(const ExportArguments& a) {
  const workload::Exported result = workload::export_huggingface(
      a.file, a.folder,
      {.dtype = dtype_of(a.dtype), .shard_bytes = shard_bytes_of(a.shard_gigabytes)});
  for (const std::string& one : result.notes) note(one);
  a.output.show(fmt::format("{}: a {} of {} parameters for transformers' from_pretrained: {}",
                            a.folder, result.kind, report::format_count(result.parameters),
                            fmt::join(result.files, ", ")),
                {{"file", a.file},
                 {"folder", a.folder},
                 {"model", result.kind},
                 {"parameters", result.parameters},
                 {"files", result.files},
                 {"notes", result.notes}});
}

}  // namespace

void add_export(CLI::App& app) {
  auto* command = app.add_subcommand(
      "export", "A saved language model as a folder that Hugging Face's transformers reads");
  const auto a = std::make_shared<ExportArguments>();
  command
      ->add_option("FILE", a->file,
                   "Model file (a run folder's ...model.safetensors), checkpoint, run folder, or a "
                   "folder of Hugging Face's")
      ->required();
  command->add_option("FOLDER", a->folder, "Folder to write, new or empty")->required();
  command->add_option("--dtype", a->dtype, "Dtype of all tensors: as-it-is, fp32, fp16 or bf16")
      ->capture_default_str();
  command
      ->add_option("--shard-size", a->shard_gigabytes,
                   "GB of a file at most; a larger model is written in several, with an index")
      ->capture_default_str();
  a->output.add_to(*command);
  command->callback([a] { export_model(*a); });
}

}  // namespace demi::cli
