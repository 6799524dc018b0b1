#include "demi/imported/archive.h"

#include <fmt/format.h>

#include <algorithm>

#include "demi/core/error.h"
#include "demi/imported/field.h"
#include "demi/imported/other_kind.h"
#include "demi/imported/program_reader.h"

namespace demi::imported {
namespace {

constexpr std::string_view kRead = "imported.read", kModels = "models/", kJson = ".json";
constexpr std::string_view kMain = "model";

ZipArchive open(const std::filesystem::path& path) {
  require_zip(path, kRead);
  return {path, kRead};
}

void require_tensor(const Archive& archive, const Program& program, const InputSpec& input) {
  const StoredTensors &weights = archive.weights(program.name),
                      &constants = archive.constants(program.name);
  const bool is_weight =
      input.kind == InputKind::parameter || (input.kind == InputKind::buffer && input.persistent);
  if ((is_weight ? weights : constants).contains(input.target)) return;
  refuse<DataError>(
      {.where = kRead,
       .what = fmt::format("{}: the graph {} reads a tensor that the file does not hold",
                           archive.path().string(), program.name),
       .seen = input.target,
       .accepted = "parameters and buffers with their values",
       .advice = "export it again, from a network whose tensors are not meta or fake ones"});
}

}  // namespace

Archive::Archive(const std::filesystem::path& path) : zip_(open(path)) {
  require_exported_program(zip_, kRead);
  zip_.check_names();
  for (const auto& [record_name, record] : zip_.records())
    if (record_name.starts_with(kModels) && record_name.ends_with(kJson))
      read_program(
          record_name.substr(kModels.size(), record_name.size() - kModels.size() - kJson.size()),
          record);
  require<DataError>(!programs_.empty(), {.where = kRead,
                                          .what = path.string() + " holds no graph",
                                          .seen = "models/ without a .json file",
                                          .accepted = "models/model.json",
                                          .advice = "export it again"});
  std::stable_partition(programs_.begin(), programs_.end(),
                        [](const Program& program) { return program.name == kMain; });
}

void Archive::read_program(const std::string& name, const Record& record) {
  weights_[name] = read_stored_tensors(
      zip_, fmt::format("data/weights/{}_weights_config.json", name), "data/weights/");
  constants_[name] = read_stored_tensors(
      zip_, fmt::format("data/constants/{}_constants_config.json", name), "data/constants/");
  Source source{.file = path(), .record = record.name};
  programs_.push_back(read_document(source, zip_.text(record), [&](const Field& document) {
    return imported::read_program(document, source, name);
  }));
  for (const InputSpec& input : programs_.back().inputs)
    if (input.kind == InputKind::parameter || input.kind == InputKind::buffer ||
        input.kind == InputKind::constant)
      require_tensor(*this, programs_.back(), input);
}

}  // namespace demi::imported
