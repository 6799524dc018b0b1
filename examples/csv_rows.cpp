// The numbers of a CSV file as tensors, and a network of the registry that demi::Trainer trains on
// them in mixed precision.
//
//     csv_rows [DEVICE [DTYPE [FILE]]]
//
// FILE has a heading and the class, 0 or 1, in the last column. Without it: rows that are made up.
#include <torch/torch.h>
#include <unistd.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "demi/demi.h"
#include "examples/arguments.h"
#include "lab/data/csv.h"
#include "lab/models/registry.h"

namespace {

namespace fs = std::filesystem;

constexpr int64_t kColumns = 16;

// Rows of 16 numbers; the class is whether the first half of them is the larger one.
fs::path write_rows() {
  const fs::path file = fs::temp_directory_path() / ("demi-rows-" + std::to_string(getpid()));
  std::ofstream out(file);
  for (int64_t column = 0; column < kColumns; ++column) out << 'x' << column << ',';
  out << "class\n";
  const torch::Tensor rows = torch::randn({1024, kColumns});
  for (int64_t i = 0; i < rows.size(0); ++i) {
    for (int64_t j = 0; j < kColumns; ++j) out << rows[i][j].item<float>() << ',';
    out << (rows[i].slice(0, 0, kColumns / 2).sum() > rows[i].slice(0, kColumns / 2).sum())
               .item<bool>()
        << '\n';
  }
  return file;
}

// The whole field as a finite number; blanks around it do not count. std::stof would read "1,234"
// as 1, and "2x" as 2.
std::optional<float> number_of(std::string_view field) {
  while (field.starts_with(' ')) field.remove_prefix(1);
  while (field.ends_with(' ')) field.remove_suffix(1);
  double number = 0;
  const auto [end, code] = std::from_chars(field.data(), field.data() + field.size(), number);
  const bool is_whole = code == std::errc() && end == field.data() + field.size();
  const auto rounded = static_cast<float>(number);
  return is_whole && std::isfinite(rounded) ? std::optional(rounded) : std::nullopt;
}

// All columns of the rows below the heading, (N, columns) fp32. The last is a class, 0 or 1.
torch::Tensor read_table(const fs::path& file) {
  const std::vector<demi::data::CsvRecord> records = demi::data::read_csv(file, ',');
  if (records.size() < 2)
    throw demi::DataError({.where = file.string(), .what = "there are no rows below a heading"});
  const std::vector<std::string>& heading = records[0].fields;
  std::vector<float> values;
  for (std::size_t i = 1; i < records.size(); ++i)
    for (std::size_t column = 0; column < heading.size(); ++column) {
      const std::string& field = records[i].fields[column];
      const bool is_class = column + 1 == heading.size();
      const std::optional<float> number = number_of(field);
      if (!number || (is_class && *number != 0 && *number != 1))
        throw demi::DataError({.where = file.string() + ", line " +
                                        std::to_string(records[i].line) + ", column " +
                                        heading[column],
                               .what = is_class ? "this is no class" : "this is no number",
                               .seen = '"' + field + '"',
                               .accepted = is_class ? "0 or 1" : "a finite number: 1234.5, -1e-3"});
      values.push_back(*number);
    }
  return torch::tensor(values).view({-1, static_cast<int64_t>(heading.size())});
}

}  // namespace

int main(int argc, char** argv) {
  const torch::Device device = device_named(argc > 1 ? argv[1] : "cpu");
  const torch::Dtype dtype = dtype_named(argc > 2 ? argv[2] : "bf16");
  torch::manual_seed(0);
  const fs::path file = argc > 3 ? fs::path(argv[3]) : write_rows();
  torch::Tensor table;
  try {
    table = read_table(file);
  } catch (const demi::DataError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
  if (argc <= 3) fs::remove(file);
  const int64_t last = table.size(1) - 1, test = table.size(0) / 4;
  const torch::Tensor x = table.slice(1, 0, last), y = table.select(1, last).to(torch::kLong);

  const demi::train::Network model =
      demi::models::make_model("mlp", {.in = last, .out = 2}, /*seed=*/0);
  model.module->to(device);
  std::printf("%lld rows, %lld parameters\n", static_cast<long long>(table.size(0)),
              static_cast<long long>(demi::models::parameter_count(*model.module)));
  demi::TrainerOptions options{.device = device};
  options.precision = demi::parse_precision(dtype == torch::kHalf ? "fp16" : "bf16");
  options.optimizers = {std::make_shared<demi::optim::AdamW>(model.module->parameters(),
                                                             demi::optim::AdamWOptions(3e-3))};
  const demi::train::History history =
      demi::Trainer(model, options)
          .fit(x.slice(0, test), y.slice(0, test),
               {.epochs = 15, .validation = {x.slice(0, 0, test), y.slice(0, 0, test)}});
  const double accuracy = *history.epochs.back().validation->accuracy;
  std::printf("loss %.3f, val_accuracy %.3f\n", history.epochs.back().loss, accuracy);
  return argc > 3 || accuracy > 0.85 ? EXIT_SUCCESS : EXIT_FAILURE;
}
