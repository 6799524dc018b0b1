// A user's program on the lab: a model of the registry, and its size in a table for the terminal.
#include <lab/models/registry.h>
#include <lab/report/table.h>

#include <iostream>
#include <string>

int main() {
  const demi::train::Network model = demi::models::make_model(
      "mlp", {.in = 8, .out = 4, .settings = {{"depth", "2"}}}, /*seed=*/0);
  const auto parameters = demi::models::parameter_count(*model.module);
  demi::report::Table table{.title = "models", .columns = {{"model"}, {"parameters"}}};
  table.rows.push_back({"mlp", std::to_string(parameters)});
  std::cout << demi::report::to_markdown(table);
  return parameters == 8 * 8 + 8 + 8 * 4 + 4 ? 0 : 1;  // two linear layers with biases
}
