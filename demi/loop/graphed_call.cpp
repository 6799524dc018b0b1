#include "demi/loop/graphed_call.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <optional>
#include <utility>

#include "demi/core/error.h"
#include "demi/loop/job.h"
#include "demi/loop/recorded_work.h"
#include "demi/loop/region.h"
#include "demi/loop/step.h"
#include "demi/step/streams.h"
#include "demi/tensor/replaced_parameter.h"

namespace demi::loop {
namespace {

constexpr auto kCall = "loop.GraphedCall";

// Several are one module, whose parts have numbers for names.
std::shared_ptr<torch::nn::Module> together(const std::vector<torch::nn::Module*>& modules) {
  Job job;
  for (std::size_t i = 0; i < modules.size(); ++i)
    job.models.emplace_back(std::to_string(i), modules[i]);
  return job.module();
}

// A call knows of no gradient, region or mode of its caller.
class OfItsOwn {
 public:
  explicit OfItsOwn(c10::Device device) : outside_(device) {}

 private:
  c10::InferenceMode no_inference_{false};
  at::NoGradGuard no_grad_;
  OutsideRegions outside_;
};

}  // namespace

struct GraphedCall::Impl final : tensor::ReplacementObserver {
  std::shared_ptr<torch::nn::Module> module;
  Function function;
  c10::Device device;
  std::optional<RecordedWork> calls;  // none: the mode is off

  Impl(const std::vector<torch::nn::Module*>& modules, Function of, CallOptions options,
       std::shared_ptr<GraphMemory> memory, bool is_beside)
      : module(together(modules)), function(std::move(of)), device(options.device) {
    if (!function)
      refuse({.where = kCall,
              .what = "there is no function",
              .seen = "an empty std::function",
              .accepted = "the work of a call"});
    if (options.graph == GraphMode::off) return;
    calls.emplace(RecordedWork::Words{.where = kCall, .what = std::move(options.name)},
                  options.graph, std::move(memory));
    const std::string reason = calls->memory()->obstacle();
    if (!reason.empty()) {
      calls->refuse_from_the_start(reason, "a CUDA device", /*is_said=*/is_beside);
      return;
    }
    calls->set_module(*module, {});
    for (const at::Tensor& parameter : module->parameters()) observe(parameter);
  }

  void replace(const tensor::Replacement&) override { calls->set_module(*module, {}); }
};

GraphedCall::GraphedCall(std::vector<torch::nn::Module*> modules, Function function,
                         CallOptions options)
    : impl_(std::make_unique<Impl>(
          modules, std::move(function), options,
          std::make_shared<GraphMemory>(graph::machine_graphs(), options.device),
          /*is_beside=*/false)) {}

GraphedCall::GraphedCall(std::vector<torch::nn::Module*> modules, Function function,
                         CallOptions options, Step& beside)
    : impl_(std::make_unique<Impl>(modules, std::move(function), options, beside.graph_memory(),
                                   /*is_beside=*/true)) {
  const c10::Device of_step = beside.graph_memory()->device();
  require(of_step == options.device, {.where = kCall,
                                      .what = "the device is another one than the step's",
                                      .seen = options.device.str(),
                                      .accepted = of_step.str()});
}

GraphedCall::~GraphedCall() = default;
GraphedCall::GraphedCall(GraphedCall&&) noexcept = default;
GraphedCall& GraphedCall::operator=(GraphedCall&&) noexcept = default;

GraphedCall::Tensors GraphedCall::operator()(const Tensors& given) {
  if (!impl_->calls) return plainly(given);
  RecordedWork& calls = *impl_->calls;
  if (!calls.records()) return plainly(given);
  calls.require_device(given);
  const OfItsOwn own(impl_->device);
  if (optim::is_capturing(impl_->device)) return impl_->function(given);  // by the program
  const auto body = [this](const Tensors& in) {
    return RecordedWork::Output{impl_->function(in), {}};
  };
  return calls.run({}, given, body).values;
}

GraphedCall::Tensors GraphedCall::plainly(const Tensors& given) {
  const OfItsOwn own(impl_->device);
  return impl_->function(given);
}

GraphCounts GraphedCall::counts() const {
  return impl_->calls ? impl_->calls->counts() : GraphCounts();
}

}  // namespace demi::loop
