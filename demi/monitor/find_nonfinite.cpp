#include "demi/monitor/find_nonfinite.h"

#include <torch/types.h>

#include <map>
#include <unordered_map>
#include <utility>

#include "demi/monitor/moments.h"
#include "demi/monitor/unobserved.h"

namespace demi::monitor {
namespace {

struct Candidate {
  NonFinite named;
  at::Tensor counts;  // int64, (2): Inf, NaN
};

// The sum of all elements times 0 would be 0 or NaN, but needs as many passes.
void add(std::vector<Candidate>& to, NonFinite named, const at::Tensor& tensor) {
  if (!tensor.defined() || !(tensor.is_floating_point() || tensor.is_complex())) return;
  const at::Tensor values = values_of(tensor);
  to.push_back({std::move(named), at::stack({values.isinf().sum(), values.isnan().sum()})});
}

std::vector<NonFinite> read(std::vector<Candidate> candidates) {
  std::map<std::string, std::vector<at::Tensor>> by_device;
  for (const Candidate& one : candidates)
    by_device[one.counts.device().str()].push_back(one.counts);
  std::map<std::string, at::Tensor> read;
  for (const auto& [device, counts] : by_device) read[device] = at::stack(counts).cpu();
  std::map<std::string, std::int64_t> row;
  std::vector<NonFinite> found;
  for (Candidate& one : candidates) {
    const std::string device = one.counts.device().str();
    const auto* counts = read[device].const_data_ptr<std::int64_t>() + 2 * row[device]++;
    one.named.infinities = counts[0];
    one.named.nans = counts[1];
    if (counts[0] + counts[1] > 0) found.push_back(std::move(one.named));
  }
  return found;
}

}  // namespace

std::string_view name_of(Role role) {
  switch (role) {
    case Role::parameter:
      return "parameter";
    case Role::gradient:
      return "gradient";
    case Role::buffer:
      return "buffer";
    case Role::moment:
      break;
  }
  return "moment";
}

std::string name_of(const NonFinite& found) {
  if (found.role == Role::moment) return found.moment + " of " + found.name;
  const std::string role(name_of(found.role));
  return role + (found.role == Role::gradient ? " of " : " ") + found.name;
}

std::string to_string(const NonFinite& found) {
  std::string text = "the " + name_of(found);
  const char* separator = ": ";
  if (found.infinities > 0) {
    text += separator + std::to_string(found.infinities) + " Inf";
    separator = ", ";
  }
  if (found.nans > 0) text += separator + std::to_string(found.nans) + " NaN";
  return text;
}

std::vector<NonFinite> find_nonfinite(const torch::nn::Module& model,
                                      const std::vector<torch::optim::Optimizer*>& optimizers) {
  const at::NoGradGuard no_grad;
  std::vector<Candidate> all;
  std::unordered_map<const c10::TensorImpl*, std::string> names;
  const auto parameters = model.named_parameters();
  for (const auto& parameter : parameters) {
    names[parameter.value().unsafeGetTensorImpl()] = parameter.key();
    add(all, {.role = Role::parameter, .name = parameter.key()}, parameter.value());
  }
  for (const auto& parameter : parameters)
    add(all, {.role = Role::gradient, .name = parameter.key()}, parameter.value().grad());
  for (const auto& buffer : model.named_buffers())
    add(all, {.role = Role::buffer, .name = buffer.key()}, buffer.value());
  for (torch::optim::Optimizer* optimizer : optimizers) {
    for (const Moment& moment : moments_of(*optimizer)) {
      const auto name = names.find(moment.parameter.unsafeGetTensorImpl());
      add(all,
          {.role = Role::moment,
           .name = name == names.end() ? "?" : name->second,
           .moment = moment.name},
          moment.value);
    }
  }
  return read(std::move(all));
}

std::vector<NonFinite> find_nonfinite(const torch::nn::Module& model,
                                      torch::optim::Optimizer& optimizer) {
  return find_nonfinite(model, {&optimizer});
}

}  // namespace demi::monitor
