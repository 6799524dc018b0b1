#include "demi/monitor/op_trace.h"

#include <torch/csrc/autograd/function.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <exception>
#include <iterator>
#include <limits>
#include <string_view>

#include "demi/core/error.h"
#include "demi/monitor/unobserved.h"
#include "demi/tensor/dtype.h"

namespace demi::monitor {
namespace {

std::atomic<OpTrace*> tracing = nullptr;

// The ops and functions that are open in this thread: autograd's threads have their own.
struct ThreadState {
  struct Op {
    std::int64_t serial = 0;
    int layer = -1;
    std::string name;
  };
  struct Function {  // of backward
    std::string name;
    std::int64_t sequence = 0;
    bool is_work = false;   // the engine's on a node: hooks, then the function itself
    std::size_t first = 0;  // of the ops of backward, when it began
  };
  std::vector<Op> ops;
  std::vector<Function> functions;
};
thread_local ThreadState thread_state;

// A tensor's least and greatest element; NaN if it holds one.
struct Extremes {
  double least = 0, greatest = 0;
  bool is_finite() const { return std::isfinite(least) && std::isfinite(greatest); }
  bool is_nan() const { return std::isnan(least) || std::isnan(greatest); }
};

std::optional<Extremes> extremes_of(const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  const bool is_read = dtype == c10::kFloat || dtype == c10::kDouble || tensor::is_16_bit(dtype);
  if (!is_read || tensor.numel() == 0 || tensor.layout() != c10::kStrided ||
      tensor.device().is_meta())
    return std::nullopt;
  const auto [least, greatest] = at::aminmax(tensor.detach());
  return Extremes{least.item<double>(), greatest.item<double>()};
}

std::string words_of(const at::Tensor& tensor) {
  std::string sizes;
  for (const std::int64_t size : tensor.sizes())
    sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  return tensor::name_of(tensor.scalar_type()) + " (" + sizes + ")";
}

bool leaves_memory_as_it_was(std::string_view op) {
  return op.find("empty") != op.npos || op.find("resize") != op.npos;
}

// Whether what its first argument holds does not matter.
bool overwrites(std::string_view op) {
  constexpr std::array<std::string_view, 5> kOverwriting{
      "aten::copy_", "aten::fill_", "aten::zero_", "aten::normal_", "aten::uniform_"};
  return std::ranges::find(kOverwriting, op) != kOverwriting.end();
}

bool is_mask(std::string_view op) {
  constexpr std::array<std::string_view, 6> kMasks{"aten::masked_fill", "aten::where",
                                                   "aten::full",        "aten::fill",
                                                   "aten::new_full",    "aten::scalar_tensor"};
  return std::ranges::any_of(kMasks, [&](std::string_view mask) { return op.starts_with(mask); });
}

constexpr std::string_view kEngine = "autograd::engine::evaluate_function: ";

// torch::autograd::CppNode<Name> is Name.
std::string function_name(std::string name) {
  const auto open = name.find('<'), close = name.rfind('>');
  if (open == std::string::npos || close <= open) return name;
  return name.substr(open + 1, close - open - 1);
}

}  // namespace

struct OpTrace::Open final : at::ObserverContext {
  TracedOp op;
  bool is_function = false;      // of backward; else an op
  std::vector<at::Tensor> read;  // keeps addresses from being used again
};

struct OpTrace::Finding {
  bool nonfinite = false, nan = false, positive = false;
};

OpTrace::OpTrace(const Layers& layers, std::vector<std::pair<std::string, at::Tensor>> held)
    : layers_(layers), held_(std::move(held)) {
  OpTrace* none = nullptr;
  if (!tracing.compare_exchange_strong(none, this))
    refuse({.where = "monitor.OriginSearch",
            .what = "another thread of this process searches",
            .advice = "let one run at a time search for the origin of NaN"});
  thread_state = {};
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&OpTrace::on_start, &OpTrace::on_end)
          .needsInputs(true)
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

OpTrace::~OpTrace() {
  at::removeCallback(handle_);
  tracing = nullptr;
}

std::unique_ptr<at::ObserverContext> OpTrace::on_start(const at::RecordFunction& op) {
  OpTrace* trace = tracing;
  if (!trace) return nullptr;
  const Unobserved reading;
  return trace->begin(op);
}

void OpTrace::on_end(const at::RecordFunction& op, at::ObserverContext* context) {
  OpTrace* trace = tracing;
  if (!trace || !context) return;
  const Unobserved reading;
  trace->end(op, static_cast<Open&>(*context));
}

std::unique_ptr<OpTrace::Open> OpTrace::begin(const at::RecordFunction& op) {
  auto open = std::make_unique<Open>();
  const std::lock_guard lock(mutex_);
  ThreadState& thread = thread_state;
  // The engine reports its work on a node as if it were an op, around hooks and function.
  const bool is_work = std::string_view(op.name()).starts_with(kEngine);
  open->is_function = is_work || op.scope() == at::RecordScope::BACKWARD_FUNCTION;
  if (open->is_function) {
    const std::string name = op.name();
    if (!is_work) name_work(op.seqNr());
    thread.functions.push_back({function_name(is_work ? name.substr(kEngine.size()) : name),
                                op.seqNr(), is_work, backward_.size()});
    return open;
  }
  TracedOp& traced = open->op;
  traced.name = op.name();
  traced.serial = serial_++;
  traced.depth = static_cast<int>(thread.ops.size());
  traced.outermost = thread.ops.empty() ? traced.serial : thread.ops.front().serial;
  bool first = true;
  for_each_tensor(op.inputs(), [&](const at::Tensor& tensor) {
    open->read.push_back(tensor);
    const int layer = layers_.find(tensor);
    if (layer >= 0) {
      traced.layer = layer;
      traced.reads_weights = true;
    }
    if (!(std::exchange(first, false) && overwrites(traced.name))) read_input(tensor, *open);
  });
  if (!thread.functions.empty())
    place_in_backward(traced);
  else if (!in_backward_ && traced.reads_weights && traced.depth == 0)
    last_layer_ = traced.layer;
  if (traced.layer < 0 && !in_backward_) traced.layer = last_layer_;
  if (!in_backward_ && traced.depth == 0)
    for (const at::Tensor& tensor : open->read) note_function(tensor);
  thread.ops.push_back({traced.serial, traced.layer, traced.name});
  return open;
}

// Notes the layer and the op of forward that made the tensor. The first note counts: inner ops end
// first.
void OpTrace::note_node(const at::Tensor& tensor, int layer, const std::string& op) {
  if (const auto& node = tensor.grad_fn()) made_.try_emplace(node->sequence_nr(), Made{layer, op});
}

// A node that no op made is a function's of the user's: in the layer of the node before it.
void OpTrace::note_function(const at::Tensor& tensor) {
  const auto& node = tensor.grad_fn();
  if (!node || made_.contains(node->sequence_nr())) return;
  const auto after = made_.upper_bound(node->sequence_nr());
  const int layer = after == made_.begin() ? -1 : std::prev(after)->second.layer;
  made_.emplace(node->sequence_nr(), Made{layer, ""});
}

// The engine does not say on which node it works before it calls the function: what hooks did until
// then is that node's.
void OpTrace::name_work(std::int64_t sequence) {
  auto& functions = thread_state.functions;
  if (functions.empty() || !functions.back().is_work) return;
  functions.back().sequence = sequence;
  for (std::size_t i = functions.back().first; i < backward_.size(); ++i)
    if (backward_[i].layer < 0) place_in_backward(backward_[i]);
}

void OpTrace::place_in_backward(TracedOp& op) const {
  const ThreadState::Function& function = thread_state.functions.back();
  if (!function.is_work) op.function = function.name;
  const auto made = made_.find(static_cast<std::uint64_t>(function.sequence));
  if (made == made_.end()) return;
  op.layer = made->second.layer;
  op.forward_op = made->second.op;
}

void OpTrace::read_input(const at::Tensor& tensor, Open& open) {
  if (uninitialised_.contains(memory_of(tensor))) {
    open.op.reads_garbage |= open.op.depth > 0;
    return;
  }
  const auto extremes = extremes_of(tensor);
  if (!extremes) return;
  TracedOp& op = open.op;
  const auto note = [&] {
    op.inputs.push_back({words_of(tensor), extremes->least, extremes->greatest});
  };
  if (extremes->is_finite()) return note();
  const auto name = held_name(tensor);
  auto writer = writer_.find(tensor.unsafeGetTensorImpl());
  const bool found = writer != writer_.end();
  if (!found) writer = storage_writer_.find(memory_of(tensor));
  if (found || writer != storage_writer_.end()) {
    note();
    op.from.push_back(writer->second);
  } else if (!name.empty()) {
    note();
    // A mask that the model holds is no fault.
    const bool is_mask_of_model = name.starts_with("buffer ") && !extremes->is_nan() &&
                                  extremes->greatest < std::numeric_limits<double>::infinity();
    if (is_mask_of_model)
      op.reads_mask = true;
    else
      op.held.push_back(name);
  } else if (op.depth == 0) {
    note();
    op.reads_unknown = true;
  } else {
    // Memory that a kernel allocates by itself, for an op inside it to write to.
    uninitialised_.insert(memory_of(tensor));
    op.reads_garbage = true;
  }
}

std::string OpTrace::held_name(const at::Tensor& tensor) const {
  for (const auto& [name, held] : held_)
    if (held.has_storage() && memory_of(held) == memory_of(tensor)) return name;
  return "";
}

void OpTrace::end(const at::RecordFunction& op, Open& open) {
  const std::lock_guard lock(mutex_);
  ThreadState& thread = thread_state;
  if (open.is_function) {
    if (!thread.functions.empty()) thread.functions.pop_back();
    return;
  }
  const ThreadState::Op outermost = thread.ops.empty() ? ThreadState::Op{} : thread.ops.front();
  if (!thread.ops.empty()) thread.ops.pop_back();
  TracedOp& traced = open.op;
  if (std::uncaught_exceptions() > 0) {
    failed_ = traced;
    return;
  }
  Finding all;
  std::vector<at::Tensor> spoiled;
  for_each_tensor(op.outputs(), [&](const at::Tensor& tensor) {
    if (!in_backward_) note_node(tensor, outermost.layer, outermost.name);
    const Finding found = write_output(tensor, open);
    if (found.nonfinite) spoiled.push_back(tensor);
    all.nonfinite |= found.nonfinite;
    all.nan |= found.nan;
    all.positive |= found.positive;
  });
  if (!all.nonfinite || traced.reads_garbage) return;
  traced.has_nan = all.nan;
  const bool all_meant = std::ranges::all_of(
      traced.from, [&](std::size_t i) { return i < ops().size() && ops()[i].on_purpose; });
  traced.on_purpose = !all.nan && !all.positive && !traced.reads_unknown && traced.held.empty() &&
                      (traced.from.empty() ? is_mask(traced.name) || traced.reads_mask : all_meant);
  if (all.nan && all_meant) traced.from.clear();  // the NaN begins here, from intended Inf
  const std::size_t index = ops().size();
  ops().push_back(std::move(traced));
  for (const at::Tensor& tensor : spoiled) {
    writer_[tensor.unsafeGetTensorImpl()] = index;
    storage_writer_[memory_of(tensor)] = index;
  }
}

OpTrace::Finding OpTrace::write_output(const at::Tensor& tensor, const Open& open) {
  const void* storage = memory_of(tensor);
  const auto shares = [&](const at::Tensor& input) { return memory_of(input) == storage; };
  const auto is_same = [&](const at::Tensor& input) { return input.is_same(tensor); };
  const bool is_alias = std::ranges::any_of(open.read, shares);
  const bool is_written = !is_alias || std::ranges::any_of(open.read, is_same);
  if (leaves_memory_as_it_was(open.op.name)) {
    uninitialised_.insert(storage);
    return {};
  }
  if (is_written) uninitialised_.erase(storage);
  if (uninitialised_.contains(storage)) return {};
  const auto extremes = extremes_of(tensor);
  if (!extremes || extremes->is_finite()) {
    writer_.erase(tensor.unsafeGetTensorImpl());
    if (is_written) storage_writer_.erase(storage);
    return {};
  }
  return {.nonfinite = true,
          .nan = extremes->is_nan(),
          .positive = extremes->greatest == std::numeric_limits<double>::infinity()};
}

void OpTrace::begin_backward(const at::Tensor& loss) {
  const std::lock_guard lock(mutex_);
  const auto writer = writer_.find(loss.unsafeGetTensorImpl());
  if (writer != writer_.end() && !in_backward_) loss_ = writer->second;
  in_backward_ = true;
  writer_.clear();
  storage_writer_.clear();
}

}  // namespace demi::monitor
