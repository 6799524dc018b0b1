#include "demi/distributed/data_parallel.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "demi/autocast/thread_state.h"
#include "demi/core/flush_subnormals.h"
#include "demi/distributed/replica.h"
#include "demi/tensor/device.h"
#include "demi/weights/cast_turns.h"
#include "demi/weights/weights.h"

namespace demi {
namespace {

using distributed::ReplicaThread;
using torch::nn::Module;

constexpr const char* kMake = "DataParallel";
constexpr const char* kForward = "DataParallel.forward";

// The device as tensors name it: with an index for a CUDA device, without one for the CPU.
c10::Device checked(c10::Device device) {
  const c10::Device known = pick_device(device.is_cpu() ? "cpu" : device.str());
  const bool is_current = device.is_cuda() && !device.has_index();
  return is_current ? c10::impl::VirtualGuardImpl(known.type()).getDevice() : known;
}

void check_devices(DataParallelOptions& options) {
  if (options.devices.empty()) {
    pick_device("cuda");  // throws where there is none
    for (c10::DeviceIndex i = 0; i < at::accelerator::deviceCount(); ++i)
      options.devices.emplace_back(c10::kCUDA, i);
  }
  for (c10::Device& device : options.devices) device = checked(device);
  options.output_device = checked(options.output_device.value_or(options.devices[0]));
}

template <class Named>
void check_device(const Named& tensors, c10::Device expected) {
  for (const auto& tensor : tensors)
    if (tensor.value().device() != expected)
      refuse({.where = kMake,
              .what = fmt::format("\"{}\" is not on the first device", tensor.key()),
              .seen = tensor.value().device().str(),
              .accepted = expected.str(),
              .advice = "module->to(device) first, or name the module's device first"});
}

// reset() of a clone draws its first values.
class KeepsRandomNumbers {
 public:
  KeepsRandomNumbers() : before_(state()) {}
  ~KeepsRandomNumbers() {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    generator.set_state(before_);
  }
  KeepsRandomNumbers(const KeepsRandomNumbers&) = delete;
  KeepsRandomNumbers& operator=(const KeepsRandomNumbers&) = delete;

 private:
  static at::Tensor state() {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    return generator.get_state();
  }
  at::Tensor before_;
};

std::shared_ptr<Module> clone_of(const Module& module) {
  try {
    return module.clone();
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    refuse({.where = kMake,
            .what = "the module cannot be cloned",
            .seen = message.substr(0, message.find('\n')),
            .accepted = "modules that derive from torch::nn::Cloneable",
            .advice = "else set DataParallelOptions::make_replica"});
  }
}

// A replica, and its tensors in the order of the module's.
struct Replica {
  std::shared_ptr<Module> module;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> buffers;
  explicit Replica(std::shared_ptr<Module> made)
      : module(std::move(made)), parameters(module->parameters()), buffers(module->buffers()) {}
};

using Parts = std::vector<std::vector<at::Tensor>>;  // [replica][input]

std::int64_t rows_of(const std::vector<at::Tensor>& inputs, std::int64_t dim) {
  std::optional<std::int64_t> rows;
  for (const at::Tensor& input : inputs) {
    if (!input.defined()) continue;
    const std::int64_t n = input.dim();
    if (n == 0 || dim >= n || dim < -n)
      refuse({.where = kForward,
              .what = fmt::format("an input has no dimension {}", dim),
              .seen = fmt::format("{} dimensions", n),
              .advice = "DataParallelOptions::dim is the one that counts examples"});
    if (rows && *rows != input.size(dim))
      refuse({.where = kForward,
              .what = fmt::format("inputs differ in their size in dimension {}", dim),
              .seen = std::to_string(input.size(dim)),
              .accepted = fmt::format("{}, as the first input has", *rows),
              .advice = "each row of one belongs to the same row of the others"});
    if (!rows) rows = input.size(dim);
  }
  if (!rows)
    refuse({.where = kForward,
            .what = "no input can be divided among the replicas",
            .seen = "no defined tensor",
            .advice = "give a batch"});
  return *rows;
}

Parts scatter(const std::vector<at::Tensor>& inputs, const std::vector<c10::Device>& devices,
              std::int64_t dim) {
  const bool any = rows_of(inputs, dim) > 0;
  Parts parts;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) continue;
    const auto chunks = inputs[i].chunk(any ? static_cast<std::int64_t>(devices.size()) : 1, dim);
    if (parts.empty()) parts.assign(chunks.size(), std::vector<at::Tensor>(inputs.size()));
    for (std::size_t r = 0; r < chunks.size(); ++r)
      parts[r][i] = chunks[r].to(devices[r], /*non_blocking=*/true);
  }
  return parts;
}

at::Tensor gather(std::vector<at::Tensor> outputs, c10::Device device, std::int64_t dim) {
  for (at::Tensor& output : outputs) output = output.to(device, /*non_blocking=*/device.is_cuda());
  if (outputs[0].dim() == 0) return at::stack(outputs);
  return outputs.size() == 1 ? outputs[0] : at::cat(outputs, dim);
}

[[noreturn]] void rethrow(const std::exception_ptr& thrown, std::size_t replica,
                          c10::Device device) {
  const std::string which = fmt::format("replica {} on {}", replica, device.str());
  const auto failed = [&](std::string_view seen) {
    std::throw_with_nested(
        ReplicaError({.where = kForward, .what = which + " threw an exception", .seen = seen}));
  };
  try {
    std::rethrow_exception(thrown);
  } catch (c10::Error& error) {
    error.add_context("in " + which + " of demi::DataParallel");
    throw;
  } catch (const std::exception& error) {
    failed(error.what());
  } catch (...) {
    failed("not a std::exception");
  }
  std::terminate();  // not reached
}

}  // namespace

struct Replicas::Impl {
  std::shared_ptr<Module> module;
  DataParallelOptions options;
  std::vector<Replica> replicas;  // all but the first
  std::vector<std::unique_ptr<ReplicaThread>> threads;
  std::vector<at::Tensor> owned;

  ~Impl() { own({}); }
  void own(const std::vector<at::Tensor>& parameters);
  void add_replica();
  void refresh(std::size_t used);
  void set_training(Module& replica) const;
  at::Tensor run(std::size_t r, const std::vector<at::Tensor>& inputs, const Forward& forward);
};

// Keeps the 16-bit copies from one forward to the next, and shares them among threads.
void Replicas::Impl::own(const std::vector<at::Tensor>& parameters) {
  const auto same = [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); };
  if (std::equal(owned.begin(), owned.end(), parameters.begin(), parameters.end(), same)) return;
  for (const at::Tensor& parameter : parameters) weights::own(parameter);
  for (const at::Tensor& parameter : owned) weights::disown(parameter);
  owned = parameters;
}

void Replicas::Impl::add_replica() {
  Replica made(options.make_replica ? options.make_replica() : clone_of(*module));
  const auto names = module->named_parameters().keys();
  if (made.module->named_parameters().keys() != names ||
      made.buffers.size() != module->buffers().size())
    refuse({.where = kMake,
            .what = "a replica has other parameters or buffers than the module",
            .seen = fmt::format("{} and {}", made.parameters.size(), made.buffers.size()),
            .accepted =
                fmt::format("{} and {}, of the same names", names.size(), module->buffers().size()),
            .advice = "clone() or make_replica has to give the module's structure"});
  replicas.push_back(std::move(made));
  threads.push_back(std::make_unique<ReplicaThread>());
}

void Replicas::Impl::set_training(Module& replica) const {
  const auto from = module->modules(), to = replica.modules();
  for (std::size_t i = 0; i < from.size(); ++i)
    if (to[i]->is_training() != from[i]->is_training()) to[i]->train(from[i]->is_training());
}

// Makes the first `used` replicas what the module is now.
void Replicas::Impl::refresh(std::size_t used) {
  const c10::Device home = options.devices[0];
  check_device(module->named_parameters(), home);
  const std::vector<at::Tensor> parameters = module->parameters(), buffers = module->buffers();
  own(parameters);
  std::map<std::string, std::vector<at::Tensor>> copies;  // of the parameters, by device
  for (std::size_t r = 1; r < used; ++r) {
    const Replica& replica = replicas[r - 1];
    if (replica.parameters.size() != parameters.size() || replica.buffers.size() != buffers.size())
      refuse(
          {.where = kForward,
           .what = "the module has other parameters or buffers than its replicas",
           .seen = fmt::format("{} and {}", parameters.size(), buffers.size()),
           .accepted = fmt::format("{} and {}", replica.parameters.size(), replica.buffers.size()),
           .advice = "make another DataParallel after a change of the structure"});
    const c10::Device device = options.devices[r];
    std::vector<at::Tensor>& there = copies[device.str()];
    if (device != home && there.empty())
      for (const at::Tensor& parameter : parameters)
        there.push_back(parameter.to(device, /*non_blocking=*/true));
    for (std::size_t p = 0; p < parameters.size(); ++p)
      if (device == home)
        distributed::share(replica.parameters[p], parameters[p]);
      else
        distributed::stand_for(replica.parameters[p], there[p], parameters[p]);
    const at::NoGradGuard no_grad;
    for (std::size_t b = 0; b < buffers.size(); ++b)
      replica.buffers[b].set_data(buffers[b].to(device, buffers[b].scalar_type(),
                                                /*non_blocking=*/true, /*copy=*/true));
    set_training(*replica.module);
  }
}

at::Tensor Replicas::Impl::run(std::size_t r, const std::vector<at::Tensor>& inputs,
                               const Forward& forward) {
  at::Tensor output = forward(r == 0 ? *module : *replicas[r - 1].module, inputs);
  if (!output.defined())
    refuse({.where = kForward,
            .what = "forward returned no tensor",
            .seen = "an undefined tensor",
            .advice = "forward returns one tensor"});
  return output;
}

Replicas::Replicas(std::shared_ptr<Module> module, DataParallelOptions options)
    : impl_(std::make_unique<Impl>()) {
  check_devices(options);
  check_device(module->named_parameters(), options.devices[0]);
  check_device(module->named_buffers(), options.devices[0]);
  impl_->module = std::move(module);
  impl_->options = std::move(options);
  const KeepsRandomNumbers keeps_random_numbers;
  for (std::size_t r = 1; r < impl_->options.devices.size(); ++r) impl_->add_replica();
}

Replicas::~Replicas() = default;

at::Tensor Replicas::forward(const std::vector<at::Tensor>& inputs, const Forward& forward) {
  const std::vector<c10::Device>& devices = impl_->options.devices;
  const Parts parts = scatter(inputs, devices, impl_->options.dim);
  impl_->refresh(parts.size());

  std::vector<at::Tensor> outputs(parts.size());
  std::vector<std::exception_ptr> thrown(parts.size());
  std::vector<c10::Stream> streams;
  for (std::size_t r = 0; r < parts.size(); ++r)
    streams.push_back(c10::impl::VirtualGuardImpl(devices[r].type()).getStream(devices[r]));
  const auto run = [&](std::size_t r) noexcept {
    try {
      const c10::StreamGuard on(streams[r]);
      outputs[r] = impl_->run(r, parts[r], forward);
    } catch (...) {
      thrown[r] = std::current_exception();
    }
  };
  {
    const weights::CastTurns turns;
    const ThreadState state;
    const bool flushes = flushes_subnormals();
    struct WaitForAll {
      std::vector<std::unique_ptr<ReplicaThread>>& threads;
      ~WaitForAll() {
        for (const auto& thread : threads) thread->wait();
      }
    } const at_the_end{impl_->threads};
    for (std::size_t r = 1; r < parts.size(); ++r)
      impl_->threads[r - 1]->start([&, r] {
        const ThreadState::Guard guard(state);
        const FlushSubnormals flush(flushes);
        run(r);
      });
    run(0);
  }
  for (std::size_t r = 0; r < thrown.size(); ++r)
    if (thrown[r]) rethrow(thrown[r], r, devices[r]);
  return gather(std::move(outputs), *impl_->options.output_device, impl_->options.dim);
}

}  // namespace demi
