#include "demi/graph/device_graph.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <functional>
#include <utility>

#include "demi/core/error.h"
#include "demi/graph/graph_library.h"

namespace demi::graph {
namespace {

constexpr auto kMake = "graph.make";

std::atomic<const GraphSource*> in_place_of_the_machines = nullptr;

// The first line: a CUDA error's name in words, behind which come hints on debugging.
std::string own_words(const std::exception& error) {
  const auto* c10 = dynamic_cast<const c10::Error*>(&error);
  const std::string text = c10 ? c10->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

class PluginGraph final : public DeviceGraph {
 public:
  PluginGraph(const GraphPlugin& plugin, c10::Device device, const PluginGraph* beside)
      : plugin_(plugin) {
    call({.where = kMake, .what = "a graph cannot be made"},
         [&] { recording_ = plugin.make(device.index(), beside ? beside->recording_ : nullptr); });
  }
  ~PluginGraph() override { plugin_.destroy(recording_); }

  void begin() override {
    require_state(State::kNew, "graph.begin", "a graph records once", "a graph that has not begun");
    try {
      call({.where = "graph.begin",
            .what = "the recording does not begin",
            .accepted = "a current stream that is not the device's default one, with nothing being "
                        "recorded on it"},
           [&] { plugin_.begin(*recording_); });
    } catch (const DeviceError&) {
      give_up();
      throw;
    }
    state_ = State::kRecording;
  }

  void end() override {
    require_state(State::kRecording, "graph.end", "nothing is being recorded",
                  "a graph that has begun");
    try {
      call(
          {.where = "graph.end",
           .what = "what was recorded cannot be replayed",
           .accepted = "work on one stream that neither waits for the device nor reads from it, as "
                       "item(), nonzero() and copies to the CPU do"},
          [&] { plugin_.end(*recording_); });
    } catch (const DeviceError&) {
      give_up();
      throw;
    }
    state_ = State::kRecorded;
  }

  void abandon() noexcept override {
    if (state_ != State::kNew) give_up();
  }

  void replay() override {
    require_state(State::kRecorded, "graph.replay", "there is nothing to replay",
                  "a graph whose recording has ended");
    call({.where = "graph.replay", .what = "the graph does not run"},
         [&] { plugin_.replay(*recording_); });
  }

  bool is_of(const GraphPlugin& plugin) const { return &plugin == &plugin_; }

 private:
  enum class State { kNew, kRecording, kRecorded, kUseless };

  std::string_view name_of_state() const {
    switch (state_) {
      case State::kNew:
        return "one that has not begun";
      case State::kRecording:
        return "one that is recording";
      case State::kRecorded:
        return "one that has ended";
      case State::kUseless:
        return "one that has failed or was abandoned";
    }
    return "";
  }

  void require_state(State state, std::string_view where, std::string_view what,
                     std::string_view accepted) const {
    require(state_ == state,
            {.where = where, .what = what, .seen = name_of_state(), .accepted = accepted});
  }

  void give_up() noexcept {
    if (std::exchange(state_, State::kUseless) != State::kUseless) plugin_.abandon(*recording_);
  }

  // Runs `work`; what it throws becomes `complaint`, with LibTorch's words as what was seen.
  template <class Work>
  static void call(Complaint complaint, const Work& work) {
    try {
      work();
    } catch (const std::exception& error) {
      const std::string seen = own_words(error);
      complaint.seen = seen;
      throw DeviceError(complaint);
    }
  }

  const GraphPlugin& plugin_;
  Recording* recording_ = nullptr;
  State state_ = State::kNew;
};

class PluginGraphs final : public GraphSource {
 public:
  explicit PluginGraphs(std::function<GraphLibrary()> library) : library_(std::move(library)) {}

  std::string obstacle(c10::Device device) const override {
    if (device.is_cpu()) return "work of the CPU is not recorded";
    if (!device.is_cuda()) return fmt::format("work of {} is not recorded", device.str());
    const GraphLibrary library = library_();
    if (!library.plugin) return library.why;
    try {
      const int count = library.plugin->devices();
      if (count == 0) return "LibTorch finds no CUDA device";
      if (device.index() >= count)
        return fmt::format("there is no {}: LibTorch finds {} CUDA device{}", device.str(), count,
                           count == 1 ? "" : "s");
    } catch (const std::exception& error) {
      return own_words(error);
    }
    return "";
  }

  std::unique_ptr<DeviceGraph> make(c10::Device device, const DeviceGraph* beside) const override {
    if (const std::string why = obstacle(device); !why.empty())
      refuse({.where = kMake,
              .what = "the work of this device cannot be recorded",
              .seen = fmt::format("{}: {}", device.str(), why),
              .accepted = "a CUDA device, with LibTorch 2.15 or newer and libdemi_graph.so",
              .advice = "run the work without recording it; demi that is configured with "
                        "-DDEMI_GRAPH=ON records, or says what is missing"});
    const GraphPlugin& plugin = *library_().plugin;
    const auto* other = dynamic_cast<const PluginGraph*>(beside);
    if (beside && !(other && other->is_of(plugin)))
      refuse({.where = kMake,
              .what = "graphs of two sources cannot share memory",
              .accepted = "one that this source has made, or none"});
    return std::make_unique<PluginGraph>(plugin, device, other);
  }

 private:
  std::function<GraphLibrary()> library_;
};

}  // namespace

DeviceGraph::~DeviceGraph() = default;
GraphSource::~GraphSource() = default;

std::unique_ptr<GraphSource> graphs_of(std::function<GraphLibrary()> library) {
  return std::make_unique<PluginGraphs>(std::move(library));
}

const GraphSource& machine_graphs() {
  static const PluginGraphs graphs(&load_graph_library);
  const GraphSource* other = in_place_of_the_machines;
  return other ? *other : graphs;
}

void set_machine_graphs(const GraphSource* source) { in_place_of_the_machines = source; }

}  // namespace demi::graph
