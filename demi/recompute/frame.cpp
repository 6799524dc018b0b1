#include "demi/recompute/frame.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>

#include "demi/core/error.h"
#include "demi/recompute/other_run.h"
#include "demi/recompute/sharing.h"
#include "demi/weights/accumulator.h"

namespace demi::recomputation {
namespace {

using torch::autograd::Node;

thread_local int second_runs = 0;

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

// Thrown through the function when backward has what it needs. No std::exception, so that nothing
// that handles errors takes it for one.
struct Enough {};

std::string described(at::ScalarType dtype, c10::Device device, c10::IntArrayRef sizes) {
  std::string text = std::string(c10::toString(dtype)) + " (";
  for (std::size_t i = 0; i < sizes.size(); ++i)
    text += (i > 0 ? ", " : "") + std::to_string(sizes[i]);
  return text + ") on " + device.str();
}

// Throws autograd's error, in the words that it has without recomputation.
[[noreturn]] void refuse_write(const std::string& what, std::int64_t now, std::int64_t then) {
  TORCH_CHECK(false,
              "[recompute.backward] one of the variables needed for gradient computation has been "
              "modified by an inplace operation: ",
              what, " is at version ", now, "; expected version ", then,
              " instead. Run backward before it is written to.");
  std::abort();
}

// The leaves that the function's part of the graph leads to: its nodes are numbered from `first`
// on.
template <class Visit>
void each_leaf(const Tensors& outputs, std::uint64_t first, const Visit& visit) {
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> open;
  const auto meet = [&](const Node* node) {
    if (node && seen.insert(node).second) open.push_back(node);
  };
  for (const auto& output : outputs)
    if (output.defined()) meet(output.grad_fn().get());
  while (!open.empty()) {
    const Node& node = *open.back();
    open.pop_back();
    if (const auto* end = dynamic_cast<const torch::autograd::AccumulateGrad*>(&node))
      visit(end->variable);
    const bool is_inside = node.sequence_nr() >= first;
    if (is_inside || dynamic_cast<const weights::Token*>(&node))
      for (const auto& edge : node.next_edges()) meet(edge.function.get());
  }
}

std::vector<c10::Device> devices_of(const Tensors& inputs) {
  std::vector<c10::Device> devices{c10::Device(c10::DeviceType::CPU)};
  for (const auto& input : inputs)
    if (input.defined() && input.is_cuda() &&
        std::find(devices.begin(), devices.end(), input.device()) == devices.end())
      devices.push_back(input.device());
  return devices;
}

RandomState random_state(const Tensors& inputs, bool preserved) {
  return preserved ? RandomState(devices_of(inputs)) : RandomState();
}

}  // namespace

void refuse_other_run(const std::string& what, const std::string& seen,
                      const std::string& accepted) {
  refuse({.where = "recompute.backward",
          .what = what,
          .seen = seen,
          .accepted = accepted,
          .advice = "the function must do the same both times: let it depend on its inputs, on "
                    "weights, and on LibTorch's default generators alone"});
}

// Stands in the graph for a tensor that is not saved.
class Frame::Absent final : public SavedVariableHooks {
 public:
  explicit Absent(std::shared_ptr<Frame> frame) : frame_(std::move(frame)) {}
  ~Absent() override {
    if (number_) frame_->release(*number_);
  }
  void call_pack_hook(const at::Tensor& tensor) override { number_ = frame_->add_place(tensor); }
  at::Tensor call_unpack_hook() override { return frame_->saved(*number_); }

 private:
  std::shared_ptr<Frame> frame_;
  std::optional<std::size_t> number_;
};

class Frame::FirstRun final : public SavedTensorScope {
 public:
  explicit FirstRun(std::shared_ptr<Frame> frame) : frame_(std::move(frame)) {}
  std::unique_ptr<SavedVariableHooks> hooks() override { return std::make_unique<Absent>(frame_); }

 private:
  std::shared_ptr<Frame> frame_;
};

// Takes the tensors that the first run has left out of the graph.
class Frame::SecondRun final : public SavedTensorScope {
 public:
  SecondRun(Frame& frame, const OutsideWatch& watch)
      : frame_(frame), watch_(watch), wanted_(frame.places_.size()) {
    frame_.made_.assign(wanted_, {});
    ++second_runs;
  }
  ~SecondRun() override { --second_runs; }
  std::unique_ptr<SavedVariableHooks> hooks() override;

  /// `tensor`: as autograd saves it, with its graph.
  void take(const at::Tensor& tensor, const at::Tensor& made) {
    const std::size_t number = count_++;
    if (number < wanted_) {
      frame_.check_place(number, made);
      frame_.made_[number] = {made, version_of(made)};
    }
    note_output(tensor);
    if (count_ >= wanted_ && frame_.options_.early_stop && is_written() && !saves_output())
      throw Enough();
  }
  // rrelu_with_noise saves its noise before it draws it.
  bool is_written() const {
    return std::ranges::none_of(
        frame_.made_, [&](const Made& one) { return watch_.is_being_written(one.tensor); });
  }
  /// Whether the newest node has saved a result of its own. A torch::autograd::Function lists what
  /// it saves, and an exception on the way leaves the list: the node would hold its result, which
  /// holds the node.
  bool saves_output() const { return at::sequence_number::peek() == after_output_; }
  bool has_enough() const { return count_ >= wanted_; }
  void check_count() const {
    if (count_ < wanted_ || (count_ > wanted_ && !frame_.options_.early_stop))
      refuse_other_run("the function saved another number of tensors when it was run again",
                       std::to_string(count_), std::to_string(wanted_));
  }

 private:
  void note_output(const at::Tensor& saved) {
    const auto* meta = saved.defined() ? torch::autograd::impl::get_autograd_meta(saved) : nullptr;
    const std::uint64_t next = at::sequence_number::peek();
    if (meta && meta->grad_fn_ && meta->grad_fn_->sequence_nr() + 1 == next) after_output_ = next;
  }

  Frame& frame_;
  const OutsideWatch& watch_;
  std::size_t wanted_, count_ = 0;
  std::optional<std::uint64_t> after_output_;  // the number of the node after such a one
};

// Holds a tensor in the second run's own graph, which only a backward within the function reads.
class Frame::Remade final : public SavedVariableHooks {
 public:
  explicit Remade(SecondRun& run) : run_(run) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    tensor_ = sharing(tensor);
    run_.take(tensor, tensor_);
  }
  at::Tensor call_unpack_hook() override { return tensor_; }

 private:
  SecondRun& run_;
  at::Tensor tensor_;
};

std::unique_ptr<SavedVariableHooks> Frame::SecondRun::hooks() {
  return std::make_unique<Remade>(*this);
}

// The inputs are saved as those of an op: if another recomputation is running the function, it
// recomputes them, too.
Frame::Frame(Function function, const Tensors& inputs, const RecomputeOptions& options)
    : function_(std::move(function)), options_(options) {
  state_.random = random_state(inputs, options.preserve_random_state);
  if (options.keep == Keep::products) products_.emplace();
  for (const auto& input : inputs) inputs_.emplace_back(input, /*is_output=*/false);
}

Tensors Frame::run(const Tensors& inputs) try {
  std::vector<std::int64_t> versions;
  for (const auto& input : inputs) versions.push_back(version_of(input));
  const std::uint64_t first = at::sequence_number::peek();
  Tensors outputs;
  {
    const FirstRun scope(shared_from_this());
    std::optional<KeptProducts::Storing> storing;
    const auto saved_so_far = [this] { return places_.size(); };
    if (products_) storing.emplace(*products_, saved_so_far);
    const tensor::KeptResultsScope kept(storing ? &*storing : nullptr);
    OutsideWatch watch;
    outputs = function_(inputs);
    outside_ = watch.take();
  }
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (version_of(inputs[i]) != versions[i])
      refuse({.where = "recompute.recompute",
              .what = "the function writes to its input, which it is to find again in backward",
              .seen = "input " + std::to_string(i),
              .advice = "let it write to a clone"});
  if (places_.empty()) return outputs;
  if (products_ && options_.early_stop) products_->drop_from(places_.size());
  each_leaf(outputs, first, [this](const at::Tensor& leaf) {
    leaves_.push_back({leaf, version_of(leaf)});
  });
  return outputs;
} catch (...) {
  // An input that was written to has a graph whose hooks hold this frame, which would hold it.
  inputs_.clear();
  function_ = nullptr;
  throw;
}

std::size_t Frame::add_place(const at::Tensor& tensor) {
  const auto sizes = tensor.sizes();
  Place place{.dtype = tensor.scalar_type(),
              .device = tensor.device(),
              .sizes = {sizes.begin(), sizes.end()},
              .storage = tensor.has_storage() ? tensor.storage().getWeakStorageImpl()
                                              : WeakStorage(c10::intrusive_ptr<c10::StorageImpl>()),
              .version = version_of(tensor)};
  places_.push_back(std::move(place));
  return places_.size() - 1;
}

void Frame::check_place(std::size_t number, const at::Tensor& made) const {
  const Place& place = places_[number];
  const bool same = made.scalar_type() == place.dtype && made.device() == place.device &&
                    made.sizes() == c10::IntArrayRef(place.sizes);
  if (!same)
    refuse_other_run("the function made another tensor when it was run again, number " +
                         std::to_string(number) + " of those that backward needs",
                     described(made.scalar_type(), made.device(), made.sizes()),
                     described(place.dtype, place.device, place.sizes));
  const auto storage = place.storage.lock();
  const bool is_from_outside =
      storage && made.has_storage() && made.storage().unsafeGetStorageImpl() == storage.get();
  if (is_from_outside && version_of(made) != place.version)
    refuse_write("a tensor that the function uses, " +
                     described(place.dtype, place.device, place.sizes) + ",",
                 version_of(made), place.version);
}

void Frame::check_outside() const {
  for (const auto& [leaf, version] : leaves_)
    if (version_of(leaf) != version)
      refuse_write("a weight that the function uses, " +
                       described(leaf.scalar_type(), leaf.device(), leaf.sizes()) + ",",
                   version_of(leaf), version);
  for (const auto& [known, version] : outside_.read)
    if (const at::Tensor tensor(known.lock()); version_of(tensor) != version && tensor.defined())
      refuse_write("a tensor that the function reads, " +
                       described(tensor.scalar_type(), tensor.device(), tensor.sizes()) + ",",
                   version_of(tensor), version);
}

at::Tensor Frame::saved(std::size_t number) {
  const std::lock_guard lock(mutex_);
  if (number >= made_.size() || !made_[number].tensor.defined()) run_again();
  const Made& made = made_[number];
  if (version_of(made.tensor) != made.version)
    refuse_write(
        "a tensor that the function made, " +
            described(made.tensor.scalar_type(), made.tensor.device(), made.tensor.sizes()) + ",",
        version_of(made.tensor), made.version);
  return made.tensor;
}

void Frame::release(std::size_t number) noexcept {
  at::Tensor released;  // destroyed after the lock
  const std::lock_guard lock(mutex_);
  if (number < made_.size()) released = std::move(made_[number].tensor);
}

void Frame::run_again() {
  if (!function_)
    refuse({.where = "recompute.backward",
            .what = "the call of recompute() that a tensor comes from has ended in an error"});
  check_outside();
  Tensors inputs;
  for (const auto& input : inputs_) inputs.push_back(input.unpack());
  try {
    call_again(inputs);
  } catch (...) {
    made_.clear();
    throw;
  }
  forget_after_backward();
}

void Frame::call_again(const Tensors& inputs) {
  const OutsideWatch watch(outside_);
  const ForwardState::Guard state(state_);
  SecondRun run(*this, watch);
  std::optional<KeptProducts::Finding> finding;
  if (products_) finding.emplace(*products_);
  const tensor::KeptResultsScope kept(finding ? &*finding : nullptr);
  try {
    function_(inputs);
  } catch (const Enough&) {
    if (!run.has_enough()) throw;
  }
  watch.check();
  run.check_count();
}

// Drops, at the end of backward, the tensors that a retained graph has not read.
void Frame::forget_after_backward() {
  if (torch::autograd::get_current_graph_task_id() == -1) return;
  torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
    const auto frame = weak.lock();
    if (!frame) return;
    std::vector<Made> forgotten;  // destroyed after the lock
    const std::lock_guard lock(frame->mutex_);
    std::swap(forgotten, frame->made_);
  });
}

Tensors run(Function function, const Tensors& inputs, const RecomputeOptions& options) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  return std::make_shared<Frame>(std::move(function), inputs, options)->run(inputs);
}

}  // namespace demi::recomputation

namespace demi {

bool is_recomputing() { return recomputation::second_runs > 0; }

}  // namespace demi
