#include "demi/distributed/sharded_optimizer_state.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <utility>

#include "demi/core/error.h"
#include "demi/core/version.h"
#include "demi/distributed/nccl.h"
#include "demi/distributed/process_group.h"
#include "demi/distributed/sharding.h"
#include "demi/optim/optimizer.h"
#include "demi/optim/parameters.h"
#include "demi/optim/state_share.h"
#include "demi/tensor/dtype.h"

namespace demi::distributed {
namespace {

constexpr const char* kWhere = "distributed.ShardedOptimizerState";

/// Devices in the order in which parameters name them, each with the number of its first parameter.
using Devices = std::vector<std::pair<at::Device, std::size_t>>;

Devices devices_of(const std::vector<at::Tensor>& parameters) {
  Devices all;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Device device = parameters[i].device();
    const auto is_it = [&](const auto& known) { return known.first == device; };
    if (std::none_of(all.begin(), all.end(), is_it)) all.emplace_back(device, i);
  }
  return all;
}

// The number of a GPU is the rank's own, so ranks agree on the kind and on which are the same.
std::string kind_of(at::Device device, const Devices& devices) {
  const std::string kind = at::Device(device.type()).str();
  if (device == devices.front().first) return kind;
  const auto it = std::find_if(devices.begin(), devices.end(),
                               [&](const auto& known) { return known.first == device; });
  return fmt::format("{}, device {} of the rank", kind, it - devices.begin() + 1);
}

// Requires one device: a collective carries bytes of all parameters that a rank keeps, from one
// memory.
void check_devices(const Devices& devices) {
  const bool can_be_sent = std::all_of(devices.begin(), devices.end(), [](const auto& known) {
    return known.first.is_cpu() || is_for_nccl(known.first);
  });
  if (can_be_sent && devices.size() < 2) return;
  std::vector<std::string> seen;
  for (const auto& [device, parameter] : devices)
    seen.push_back(fmt::format("parameter {} on {}", parameter, device.str()));
  refuse({.where = kWhere,
          .what = can_be_sent ? "the parameters of a rank are on several devices"
                              : "a parameter cannot be sent to the other ranks",
          .seen = fmt::format("{}", fmt::join(seen, ", ")),
          .accepted = "all parameters on the CPU, or all on one GPU",
          .advice = "move the model to one device, or keep the whole state on each rank"});
}

std::string description(const optim::Optimizer& optimizer, const ShardOptions& options) {
  std::string text = fmt::format("demi {}\noptimizer {}\nbucket_bytes {}\n", version(),
                                 optimizer.rule_name(), options.bucket_bytes);
  text += fmt::format("steps taken {}\n", optimizer.state_tensors().at("taken").item<int64_t>());
  const std::vector<StateDict> groups = optimizer.group_numbers();
  const Devices devices = devices_of(optim::parameters_of(optimizer));
  std::size_t number = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const auto& [name, value] : groups[g])
      text += fmt::format("group {}: {} {}\n", g, name, value);
    for (const at::Tensor& parameter : optimizer.param_groups()[g].params())
      text += fmt::format("parameter {} of group {}: {}, {} ({}), strides ({})\n", number++, g,
                          kind_of(parameter.device(), devices),
                          tensor::name_of(parameter.scalar_type()),
                          fmt::join(parameter.sizes(), ", "), fmt::join(parameter.strides(), ", "));
  }
  return text;
}

/// A state tensor as others make it: what one line of a list says.
struct StateTensor {
  std::string name;
  c10::ScalarType dtype;
  std::vector<std::int64_t> sizes;
};

using NamedTensors = std::map<std::string, at::Tensor>;

std::string list_of(const NamedTensors& tensors) {
  std::string text;
  for (const auto& [name, tensor] : tensors)
    text += fmt::format("{} {} {} {}\n", name, static_cast<int>(tensor.scalar_type()), tensor.dim(),
                        fmt::join(tensor.sizes(), " "));
  return text;
}

std::vector<StateTensor> read_list(const std::string& text) {
  std::vector<StateTensor> all;
  std::istringstream words(text);
  StateTensor one;
  int dtype = 0;
  for (std::size_t dimensions = 0; words >> one.name >> dtype >> dimensions; all.push_back(one)) {
    one.dtype = static_cast<c10::ScalarType>(dtype);
    one.sizes.resize(dimensions);
    for (std::int64_t& size : one.sizes) words >> size;
  }
  return all;
}

}  // namespace

class ShardedOptimizerState::Share final : public optim::StateShare {
 public:
  Share(optim::Optimizer& optimizer, ProcessGroup& group, const ShardOptions& options)
      : parameters_(optim::parameters_of(optimizer)),
        group_(&group),
        options_(options),
        rank_(group.rank()),
        device_(parameters_.empty() ? at::Device(at::kCPU) : parameters_.front().device()),
        elements_(static_cast<std::size_t>(group.world_size())) {
    std::vector<std::int64_t> sizes;
    for (const at::Tensor& parameter : parameters_) sizes.push_back(parameter.numel());
    owners_ = owners_of_tensors(optimizer.step_costs(), group.world_size());
    for (std::size_t i = 0; i < sizes.size(); ++i) elements_[owner(i)] += sizes[i];
  }

  bool holds(std::size_t parameter) const override { return owners_.at(parameter) == rank_; }

  void before_step() const override {
    if (!group_)
      refuse({.where = kWhere,
              .what = "the optimizer has one rank's share of the state, and nobody to "
                      "share it with",
              .seen = "a step after the end of its ShardedOptimizerState",
              .advice = "keep it as long as the optimizer steps"});
  }

  void exchange(const StepResult& result) override {
    if (group_->world_size() == 1) return;
    if (agree_on(result)) send_parameters();
  }

  void end() { group_ = nullptr; }
  ProcessGroup& group() { return *group_; }
  const ShardOptions& options() const { return options_; }
  const std::vector<std::int64_t>& elements() const { return elements_; }

 private:
  std::size_t owner(std::size_t parameter) const {
    return static_cast<std::size_t>(owners_[parameter]);
  }

  // Whether the step was taken. Ranks that differ here would wait for each other, or diverge. If
  // the device decided, the host waits for the update here, once a step.
  bool agree_on(const StepResult& result) const {
    const bool taken = !result.skipped();
    std::int64_t count = 0, mix = 0;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (!parameters_[i].grad().defined()) continue;
      ++count;
      mix = (mix * 31 + static_cast<std::int64_t>(i) + 1) % 1'000'000'007;
    }
    const std::int64_t word = mix * 2 + (taken ? 1 : 0);
    const at::Tensor words = at::tensor({word, -word}, at::kLong);
    group_->start_all_reduce(words, Reduction::kMax).wait();
    if (words[0].item<std::int64_t>() != -words[1].item<std::int64_t>())
      refuse({.where = kWhere,
              .what = "the ranks do not take the same step",
              .seen = fmt::format("rank {}: {}, with gradients of {} parameters", rank_,
                                  taken ? "taken" : "skipped", count),
              .accepted = "the same gradients on all ranks",
              .advice = "average them with DistributedDataParallel, and let no rank skip alone"});
    return taken;
  }

  // A step changes parameters that have a gradient, and no other.
  void send_parameters() {
    const at::NoGradGuard no_grad;
    std::vector<std::vector<at::Tensor>> sent(elements_.size());
    std::vector<std::pair<at::Tensor, at::Tensor>> compact;  // of those with gaps, and their copies
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor& parameter = parameters_[i];
      if (!parameter.grad().defined()) continue;
      if (parameter.is_non_overlapping_and_dense()) {
        sent[owner(i)].push_back(parameter);
        continue;
      }
      sent[owner(i)].push_back(parameter.detach().clone(at::MemoryFormat::Contiguous));
      if (!holds(i)) compact.emplace_back(parameter.detach(), sent[owner(i)].back());
    }
    std::vector<ByteStream> streams;
    for (const auto& tensors : sent) streams.emplace_back(tensors);
    exchange_streams(streams, options_.bucket_bytes, device_, *group_);
    for (auto& [parameter, copy] : compact) parameter.copy_(copy);
  }

  std::vector<at::Tensor> parameters_;  // through all groups of the optimizer
  std::vector<int> owners_;             // by parameter
  ProcessGroup* group_;                 // null: the sharing has ended
  ShardOptions options_;
  int rank_;
  at::Device device_;                   // of all parameters
  std::vector<std::int64_t> elements_;  // by rank
};

ShardedOptimizerState::ShardedOptimizerState(optim::Optimizer& optimizer, ProcessGroup& group,
                                             const ShardOptions& options)
    : optimizer_(optimizer) {
  if (options.bucket_bytes < 1)
    refuse({.where = kWhere,
            .what = "a bucket has no size",
            .seen = std::to_string(options.bucket_bytes),
            .accepted = "1 byte or more",
            .advice = "leave it out for the default"});
  group.require_same("the optimizer whose state they share", description(optimizer, options));
  if (group.world_size() > 1) check_devices(devices_of(optim::parameters_of(optimizer)));
  share_ = std::make_shared<Share>(optimizer, group, options);
  optimizer.share_state(share_);
}

ShardedOptimizerState::~ShardedOptimizerState() { share_->end(); }

const std::vector<std::int64_t>& ShardedOptimizerState::elements() const {
  return share_->elements();
}

void ShardedOptimizerState::release() { optimizer_.drop_others_state(); }

// Each rank's state passes by all, since there is no other collective with one sender; rank 0 keeps
// it, the others receive each piece over the one before. The state of GPUs goes over memory of the
// CPU, where rank 0 keeps it: one GPU need not have room for the state of all, and a checkpoint is
// written from there.
void ShardedOptimizerState::consolidate() {
  const at::NoGradGuard no_grad;
  ProcessGroup& group = share_->group();
  release();
  NamedTensors own = optimizer_.state_tensors();
  std::erase_if(own, [](const auto& entry) {  // the same on all ranks
    return entry.first == "taken" || entry.first == "accepted_norms" ||
           entry.first.starts_with("scheduled_rates.");
  });
  NamedTensors others;
  for (int root = 1; root < group.world_size(); ++root) {
    const bool sends = group.rank() == root;
    std::vector<at::Tensor> tensors;
    for (const StateTensor& one :
         read_list(broadcast_text(sends ? list_of(own) : "", root, group))) {
      if (sends) {
        tensors.push_back(own.at(one.name).contiguous());
      } else if (group.rank() == 0) {
        tensors.push_back(at::empty(one.sizes, one.dtype));
        others[one.name] = tensors.back();
      }
    }
    const ByteStream stream(tensors);
    const at::Tensor size = at::full({1}, stream.size(), at::kLong);
    group.start_broadcast(size, root).wait();
    const std::int64_t all = size.item<std::int64_t>();
    const std::int64_t most = std::min(all, share_->options().bucket_bytes);
    const at::Tensor buffer = at::empty({most}, at::kByte);
    for (std::int64_t begin = 0; begin < all; begin += most) {
      const at::Tensor piece = buffer.narrow(0, 0, std::min(most, all - begin));
      if (sends) stream.read(begin, piece);
      group.start_broadcast(piece, root).wait();
      if (group.rank() == 0) stream.write(begin, piece);
    }
  }
  if (group.rank() == 0) optimizer_.set_others_state(std::move(others));
}

}  // namespace demi::distributed
