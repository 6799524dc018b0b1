#include "demi/loop/job.h"

#include <set>

#include "demi/core/error.h"

namespace demi::loop {
namespace {

// A pointer without ownership: the caller owns the module.
std::shared_ptr<torch::nn::Module> borrowed(torch::nn::Module* module) {
  return {std::shared_ptr<torch::nn::Module>(), module};
}

void check_models(const std::vector<NamedModel>& models) {
  const auto refuse = [](const char* what, const std::string& seen) {
    throw UsageError({.where = "loop.Job",
                      .what = what,
                      .seen = seen,
                      .accepted = "one model or more, several with a name each",
                      .advice = "such as {.models = {{\"generator\", &*g}, {\"critic\", &*d}}}"});
  };
  if (models.empty()) refuse("there is no model", "none");
  std::set<std::string> names;
  for (const NamedModel& model : models) {
    if (!model.module) refuse("a model is null", model.name.empty() ? "no name" : model.name);
    if (models.size() == 1) return;
    if (model.name.empty() || model.name.find('.') != std::string::npos)
      refuse("the name of a model among several is empty or has a dot", '"' + model.name + '"');
    if (!names.insert(model.name).second) refuse("two models have one name", model.name);
  }
}

}  // namespace

std::shared_ptr<torch::nn::Module> Job::module() const {
  check_models(models);
  if (models.size() == 1) return borrowed(models.front().module);
  auto all = std::make_shared<torch::nn::Module>("models");
  for (const NamedModel& model : models) all->register_module(model.name, borrowed(model.module));
  return all;
}

}  // namespace demi::loop
