#include "demi/loop/recorded_work.h"

#include <ATen/Context.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <unordered_set>
#include <utility>

#include "demi/autocast/op_table.h"
#include "demi/autocast/parts.h"
#include "demi/autocast/policy.h"
#include "demi/core/error.h"
#include "demi/profile/memory.h"
#include "demi/quantization/native_products.h"
#include "demi/step/streams.h"
#include "demi/tensor/module_tensors.h"
#include "demi/tensor/place.h"
#include "demi/weights/weights.h"

namespace demi::loop {
namespace {

/// Plain runs of a kind before it is recorded: lazy handles and workspaces are made, an algorithm
/// is chosen, states and tables are there. PyTorch asks for as many.
constexpr int kPlainRuns = 3;
/// And at most, if a run differs from the one before: the first after a change may make copies.
constexpr int kMostPlainRuns = 6;
/// Kinds that are kept: the one that was not used for the longest time goes.
constexpr std::size_t kMostGraphs = 16;

// The host knows which copies are valid, and asks before each replay.
class CapturesStep {
 public:
  CapturesStep() : before_(weights::captures_step()) { weights::set_captures_step(true); }
  ~CapturesStep() { weights::set_captures_step(before_); }
  CapturesStep(const CapturesStep&) = delete;
  CapturesStep& operator=(const CapturesStep&) = delete;

 private:
  bool before_;
};

// Work goes to `side` while it lives, after what the caller's stream holds; that stream goes on
// after it.
class OnStream {
 public:
  explicit OnStream(c10::Stream side)
      : before_(*optim::current_stream(side.device())), guard_(side) {
    optim::wait_for(before_);
  }
  ~OnStream() {
    const c10::Stream side = guard_.current_stream();
    guard_.reset_stream(before_);
    optim::wait_for(side);
  }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  c10::Stream before_;
  c10::StreamGuard guard_;
};

using Tensors = RecordedWork::Tensors;

Tensors fixed(const Tensors& given) {
  Tensors all;
  for (const at::Tensor& one : given) all.push_back(one.defined() ? one.detach().clone() : one);
  return all;
}

// The place of a view in its storage is a number of the host, and another one in each batch of a
// set. A recording has tensors of their own.
Tensors without_places(const Tensors& given) {
  Tensors all = given;
  for (at::Tensor& one : all)
    if (one.defined() && one.storage_offset() != 0 && !one.requires_grad())
      one = one.detach().clone();
  return all;
}

void fill(const Tensors& fixed, const Tensors& given) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < fixed.size(); ++i)
    if (fixed[i].defined()) at::Tensor(fixed[i]).copy_(given[i], /*non_blocking=*/true);
}

void add_form(RecordedWork::Key& key, const at::Tensor& tensor) {
  if (!tensor.defined()) return key.push_back(-1);
  key.push_back(static_cast<std::int64_t>(tensor.scalar_type()) << 8 | tensor.dim());
  key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
  key.insert(key.end(), tensor.strides().begin(), tensor.strides().end());
}

// LibTorch's or demi's: what was tried cannot be recorded.
bool is_of_device(const std::exception& error) {
  return dynamic_cast<const c10::Error*>(&error) || dynamic_cast<const DeviceError*>(&error) ||
         dynamic_cast<const UsageError*>(&error);
}

}  // namespace

c10::Stream GraphMemory::side() {
  if (!side_)
    side_ = c10::impl::VirtualGuardImpl(device_.type())
                .getStreamFromGlobalPool(device_, /*isHighPriority=*/false);
  return *side_;
}

std::shared_ptr<graph::DeviceGraph> GraphMemory::make() {
  std::erase_if(graphs_, [](const auto& one) { return one.expired(); });
  if (graphs_.empty()) bytes_ = 0;
  const auto beside = graphs_.empty() ? nullptr : graphs_.front().lock();
  std::shared_ptr<graph::DeviceGraph> made = source_.make(device_, beside.get());
  graphs_.push_back(made);
  return made;
}

std::int64_t GraphMemory::bytes() const {
  return std::ranges::all_of(graphs_, [](const auto& one) { return one.expired(); }) ? 0 : bytes_;
}

struct RecordedWork::Kind {
  int runs = 0;
  std::unique_ptr<graph::WorkTrace> first, second;  // of the last two plain runs
  std::shared_ptr<graph::DeviceGraph> graph;
  Tensors given;                      // fixed
  std::vector<c10::Storage> outside;  // what else the graph reads
  Output output;                      // in its memory
  std::function<void()> after;        // each replay
  std::vector<graph::HostPart> parts;
  weights::RecordedCopies copies;
  std::int64_t used = 0;
  bool is_refused = false;  // it cannot be recorded
};

RecordedWork::RecordedWork(Words words, GraphMode mode, std::shared_ptr<GraphMemory> memory)
    : words_(std::move(words)), mode_(mode), memory_(std::move(memory)) {}

RecordedWork::~RecordedWork() = default;

void RecordedWork::refuse_from_the_start(const std::string& reason, std::string_view accepted,
                                         bool is_said) {
  records_ = false;
  refusal_ = reason;
  if (mode_ == GraphMode::on)
    refuse({.where = words_.where,
            .what = words_.what + " cannot be recorded in a graph",
            .seen = reason,
            .accepted = accepted,
            .advice = "take GraphMode::automatic, which then runs plainly"});
  if (!memory_->device().is_cpu() && !is_said) {
    TORCH_WARN("[", words_.where, "] ", words_.what,
               " is not recorded in a graph and runs plainly: ", reason);
  }
}

void RecordedWork::set_module(const torch::nn::Module& module, const Tensors& more) {
  kinds_.clear();
  held_.clear();
  parameters_.clear();
  buffers_.clear();
  modules_.clear();
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& [name, tensor] : tensor::parameters_once(module)) {
    held_.emplace_back(name, tensor);
    parameters_.push_back(tensor);
    seen.insert(tensor.unsafeGetTensorImpl());
  }
  for (const at::Tensor& one : more)
    if (seen.insert(one.unsafeGetTensorImpl()).second) parameters_.push_back(one);
  for (const auto& [name, tensor] : tensor::buffers_once(module)) {
    held_.emplace_back(name, tensor);
    buffers_.push_back(tensor);
  }
  modules_.push_back(&module);
  for (const auto& one : module.modules(/*include_self=*/false)) modules_.push_back(one.get());
}

void RecordedWork::require_device(const Tensors& given) const {
  const c10::Device wanted = memory_->device();
  for (const at::Tensor& one : given)
    if (one.defined() && !tensor::is_on(one, wanted))
      refuse({.where = words_.where,
              .what = "a tensor of a batch lies on another device than " + words_.what,
              .seen = one.device().str(),
              .accepted = wanted.str(),
              .advice = "move it there: tensor.to(device)"});
}

// What shapes the work beside the tensors. An address is part of it: a graph reads and writes
// there.
void RecordedWork::add_settings(Key& key) {
  Backends now = Backends::current();
  if (!(now == backends_)) {
    backends_ = std::move(now);
    ++backends_seen_;
  }
  key.push_back(backends_seen_);
  key.push_back(static_cast<std::int64_t>(weights::mode()) << 1 |
                static_cast<std::int64_t>(at::GradMode::is_enabled()));
  // Equal tables are one object, which is never destroyed.
  key.push_back(std::bit_cast<std::int64_t>(global_table(memory_->device().type())));
  const Policy policy = global_policy();
  key.push_back(static_cast<std::int64_t>(policy.compute_dtype()) << 8 |
                static_cast<std::int64_t>(policy.variable_dtype()));
  std::int64_t bits = 1;
  const auto add_bit = [&](bool bit) {
    bits = bits << 1 | static_cast<std::int64_t>(bit);
    if (bits >> 62 != 0) key.push_back(std::exchange(bits, 1));
  };
  for (const torch::nn::Module* one : modules_) add_bit(one->is_training());
  for (const at::Tensor& one : parameters_) add_bit(one.requires_grad());
  key.push_back(bits);
  for (const Tensors* all : {&parameters_, &buffers_})
    for (const at::Tensor& one : *all)
      key.push_back(std::bit_cast<std::int64_t>(one.const_data_ptr()));
  if (!parts_in_use()) return;
  for (const at::Tensor& one : parameters_) {
    const auto dtype = dtype_of_part(one);
    key.push_back(dtype ? static_cast<std::int64_t>(*dtype) : -1);
    // A replay would repeat roundings by chance: each batch of theirs is another kind.
    const auto recipe = recipe_of_part(one);
    key.push_back(recipe ? static_cast<std::int64_t>(recipe->number) : -1);
    if (!recipe) continue;
    key.push_back(std::bit_cast<std::int64_t>(recipe->recipe));  // of a table that is never gone
    key.push_back(static_cast<std::int64_t>(quantization::native_products()));
    if (recipe->recipe->gradient.by_chance) key.push_back(recipe->run->batch);
  }
}

RecordedWork::Key RecordedWork::key_of(Key front, const Tensors& given) {
  for (const at::Tensor& one : given) add_form(front, one);
  add_settings(front);
  return front;
}

RecordedWork::Output RecordedWork::run_plainly(const Tensors& given, const Body& body) {
  if (!records_ || optim::is_capturing(memory_->device())) return body(given);
  const OnStream side(memory_->side());
  return body(given);
}

RecordedWork::Output RecordedWork::run(Key front, const Tensors& given, const Body& body) {
  Key key = key_of(std::move(front), given);
  auto place = kinds_.find(key);
  if (place == kinds_.end()) {
    make_room(/*for_graph=*/false);
    place = kinds_.emplace(std::move(key), std::make_unique<Kind>()).first;
  }
  Kind& kind = *place->second;
  kind.used = ++uses_;
  has_run_nothing_ = false;
  Output output;
  if (kind.graph) {
    if (replay(kind, given, output)) return output;
    kind = Kind{.used = kind.used};  // it is no longer what is done
  }
  if (kind.first && kind.second && is_steady(kind) && record(kind, given, body)) {
    if (replay(kind, given, output)) return output;
    give_up(kind, "what was recorded does not hold at once");
  }
  return run_first(kind, given, body);
}

RecordedWork::Output RecordedWork::run_first(Kind& kind, const Tensors& given, const Body& body) {
  will_run_plainly(given);
  if (kind.is_refused || kind.runs + 2 < kPlainRuns) {
    ++kind.runs;
    return run_plainly(given, body);
  }
  const Tensors own = without_places(given);
  graph::NamedTensors known;
  for (const Tensors& all : {own, also_given()})
    for (const at::Tensor& one : all) known.emplace_back("", one);
  // Else a run would cast what was written since the one before, and be other work than that.
  kind.copies.refresh();
  auto trace = graph::WorkTrace::begin(known, held_, kind_of_work(given));
  Output output = run_plainly(own, body);
  if (!trace) return output;  // another thread traces: the next run does
  trace->end();
  (kind.first ? kind.second : kind.first) = std::move(trace);
  kind.copies = weights::RecordedCopies(parameters_);
  ++kind.runs;
  return output;
}

// Whether the last two plain runs were the same work, which can be recorded.
bool RecordedWork::is_steady(Kind& kind) {
  for (const auto* trace : {&*kind.first, &*kind.second})
    if (!trace->obstacle().empty()) {
      give_up(kind, std::string(trace->obstacle()));
      return false;
    }
  const std::string found = kind.first->difference(*kind.second);
  if (!found.empty()) {
    if (kind.runs >= kMostPlainRuns)
      give_up(kind, found);
    else
      kind.first = std::move(kind.second);
    return false;
  }
  kind.outside = kind.second->outside();
  kind.first.reset();
  kind.second.reset();
  return true;
}

// One warning is enough: what is at fault is often the same for all kinds.
void RecordedWork::give_up(Kind& kind, const std::string& reason) {
  kind = Kind{.used = kind.used, .is_refused = true};
  const bool is_first = refusal_.empty();
  if (is_first) refusal_ = reason;
  if (mode_ == GraphMode::on)
    refuse({.where = words_.where,
            .what = words_.what + " cannot be recorded in a graph",
            .seen = reason,
            .accepted = "work that the device does alone and that is the same each time",
            .advice = "change what is named, or take GraphMode::automatic, which then runs "
                      "plainly"});
  if (is_first) {
    TORCH_WARN("[", words_.where, "] ", words_.what,
               " is not recorded in a graph and runs plainly: ", reason);
  }
}

bool RecordedWork::is_refused(Key front, const Tensors& given) {
  if (!records_ || refusal_.empty()) return !records_;
  const auto kind = kinds_.find(key_of(std::move(front), given));
  return kind != kinds_.end() && kind->second->is_refused;
}

// Nothing of it runs. The body is that of the program, and may throw.
void RecordedWork::record_into(Kind& kind, const Tensors& given, const Body& body) {
  kind.given = fixed(given);
  kind.graph = memory_->make();
  const OnStream side(memory_->side());  // waits for it again when nothing is recorded there
  // A copy that is not valid would be cast in each replay.
  kind.copies.refresh();
  const CapturesStep captures;
  graph::RecordingScope recording;
  try {
    kind.graph->begin();
    kind.output = body(kind.given);
    kind.graph->end();
  } catch (...) {
    kind.output = {};
    kind.graph->abandon();
    throw;
  }
  kind.parts = recording.take_parts();
}

// If it throws, all is as before.
bool RecordedWork::record(Kind& kind, const Tensors& given, const Body& body) {
  make_room(/*for_graph=*/true);
  will_record();
  const c10::Device device = memory_->device();
  const std::int64_t reserved = profile::memory_use(device).reserved_bytes;
  try {
    record_into(kind, given, body);
  } catch (const std::exception& error) {
    kind = Kind{.used = kind.used};
    recording_failed();
    if (!is_of_device(error)) {  // the program's own
      has_run_nothing_ = true;
      throw;
    }
    const std::string words = error.what();
    give_up(kind, words.substr(0, words.find('\n')));
    return false;
  }
  kind.copies = weights::RecordedCopies(parameters_);
  kind.after = has_recorded();
  // What is recorded takes memory from the device, not from what plain runs have left.
  memory_->add_bytes(
      std::max<std::int64_t>(profile::memory_use(device).reserved_bytes - reserved, 0));
  ++recorded_;
  return true;
}

bool RecordedWork::replay(Kind& kind, const Tensors& given, Output& output) {
  for (const graph::HostPart& part : kind.parts)
    if (part.prepare && !part.prepare()) return false;
  if (!kind.copies.refresh()) return false;
  fill(kind.given, given);
  kind.graph->replay();
  ++replays_;
  for (const graph::HostPart& part : kind.parts)
    if (part.note) part.note();
  if (kind.after) kind.after();
  for (const at::Tensor& value : kind.output.values)
    output.values.push_back(value.defined() ? value.clone() : value);
  for (const StepResult& result : kind.output.results) output.results.push_back(result.copied());
  return true;
}

void RecordedWork::make_room(bool for_graph) {
  constexpr std::size_t kMostKinds = 4 * kMostGraphs;
  const auto graphs = static_cast<std::size_t>(
      std::ranges::count_if(kinds_, [](const auto& one) { return one.second->graph != nullptr; }));
  const bool is_full = for_graph && graphs >= kMostGraphs;
  if (!is_full && kinds_.size() < kMostKinds) return;
  auto oldest = kinds_.end();
  for (auto one = kinds_.begin(); one != kinds_.end(); ++one)
    if (one->second->used != uses_ && (!is_full || one->second->graph) &&
        (oldest == kinds_.end() || one->second->used < oldest->second->used))
      oldest = one;
  if (oldest != kinds_.end()) kinds_.erase(oldest);
}

}  // namespace demi::loop
