#pragma once

// Memory of the device of second_device.h: the host's, in blocks that are known one by one. A graph
// (recorded_graph.h) writes to the addresses that it has seen, so what it could refer to stays as
// long as it lives, and bytes of 0xFF (NaN) lie where nobody may read any more.
#include <c10/core/Device.h>
#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace second_device {

inline const c10::Device kDevice(c10::DeviceType::XPU, 0);

/// Memory of graphs that share it: its blocks stay until the last of these graphs is gone.
struct Pool {
  int graphs = 0;
};

class Blocks {
 public:
  static Blocks& all() {
    static auto* blocks = new Blocks;  // never destroyed: tensors are freed at exit
    return *blocks;
  }

  /// `pool`: of the graph whose recording asks for it, or null.
  void* allocate(std::size_t bytes, std::shared_ptr<Pool> pool) {
    auto* data = static_cast<std::byte*>(c10::alloc_cpu(bytes));
    if (!data) return nullptr;
    // Kernels of demi do not run while a graph records them: who takes their numbers for indices
    // finds some that are in range.
    if (pool) std::memset(data, 0, bytes);
    const std::lock_guard lock(mutex_);
    blocks_[data] = {.bytes = bytes, .pool = std::move(pool), .born = ++now_};
    in_use_ += bytes;
    peak_ = std::max(peak_, in_use_);
    return data;
  }

  /// As LibTorch's allocator of a GPU counts them: of tensors, now and at most since reset_peak();
  /// and all that is held, that of graphs included, which no other memory is made of.
  struct Counts {
    std::size_t in_use = 0, peak = 0, reserved = 0, of_graphs = 0;
  };
  Counts counts() {
    const std::lock_guard lock(mutex_);
    Counts all{.in_use = in_use_, .peak = peak_};
    for (const auto& [data, block] : blocks_) {
      all.reserved += block.bytes;
      if (block.pool) all.of_graphs += block.bytes;
    }
    return all;
  }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    peak_ = in_use_;
  }

  static void release(void* data) {
    if (data) all().free(static_cast<std::byte*>(data));
  }

  /// The numbers of the block that holds this address, to be put back.
  struct Saved {
    std::byte* data = nullptr;
    std::vector<std::byte> bytes;
  };
  std::optional<Saved> save(const void* address) {
    const std::lock_guard lock(mutex_);
    const auto found = find(static_cast<const std::byte*>(address));
    if (found == blocks_.end()) return std::nullopt;
    auto* data = found->first;
    return Saved{data, {data, data + found->second.bytes}};
  }
  void put_back(const Saved& saved) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(saved.data);
    if (found != blocks_.end() && !found->second.freed)
      std::memcpy(saved.data, saved.bytes.data(), saved.bytes.size());
  }

 private:
  friend class MemoryOfGraph;

  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  struct Block {
    std::size_t bytes = 0;
    std::shared_ptr<Pool> pool;
    std::int64_t born = 0;
    std::int64_t freed = 0;  // 0: still in use
  };
  struct Graph {
    std::shared_ptr<Pool> pool;
    std::int64_t begun = kNever, ended = kNever;
  };
  using Map = std::map<std::byte*, Block>;

  Map::iterator find(const std::byte* address) {
    auto next = blocks_.upper_bound(const_cast<std::byte*>(address));
    if (next == blocks_.begin()) return blocks_.end();
    const auto found = std::prev(next);
    return address < found->first + found->second.bytes ? found : blocks_.end();
  }

  static bool could_refer_to(const Graph& graph, const Block& block) {
    return block.born <= graph.ended && block.freed >= graph.begun;
  }
  bool is_kept(const Block& block) const {
    if (block.pool) return block.pool->graphs > 0;
    return std::any_of(graphs_.begin(), graphs_.end(),
                       [&](const Graph* graph) { return could_refer_to(*graph, block); });
  }
  static void fill(const Map::value_type& block) {
    std::memset(block.first, 0xFF, block.second.bytes);
  }

  void free(std::byte* data) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(data);
    found->second.freed = ++now_;
    in_use_ -= found->second.bytes;
    if (is_kept(found->second)) return fill(*found);
    c10::free_cpu(data);
    blocks_.erase(found);
  }

  std::mutex mutex_;
  Map blocks_;
  std::vector<Graph*> graphs_;
  std::int64_t now_ = 0;
  std::size_t in_use_ = 0, peak_ = 0;
};

/// The memory that a graph could refer to: while this lives, none of it is used for anything else.
class MemoryOfGraph {
 public:
  explicit MemoryOfGraph(std::shared_ptr<Pool> pool) {
    graph_.pool = std::move(pool);
    const std::lock_guard lock(all_.mutex_);
    ++graph_.pool->graphs;
    all_.graphs_.push_back(&graph_);
  }
  ~MemoryOfGraph() {
    const std::lock_guard lock(all_.mutex_);
    --graph_.pool->graphs;
    std::erase(all_.graphs_, &graph_);
    std::erase_if(all_.blocks_, [&](const auto& block) {
      const bool goes = block.second.freed && !all_.is_kept(block.second);
      if (goes) c10::free_cpu(block.first);
      return goes;
    });
  }
  MemoryOfGraph(const MemoryOfGraph&) = delete;
  MemoryOfGraph& operator=(const MemoryOfGraph&) = delete;

  void begin() {
    const std::lock_guard lock(all_.mutex_);
    graph_.begun = ++all_.now_;
  }
  /// Nothing has run yet: what was allocated for the recording holds no numbers.
  void end() {
    const std::lock_guard lock(all_.mutex_);
    graph_.ended = ++all_.now_;
    for (const auto& block : all_.blocks_)
      if (block.second.pool == graph_.pool && block.second.born > graph_.begun) Blocks::fill(block);
  }

  /// What nobody holds any more is lost, as where the next graph of the pool uses it again.
  void lose_what_is_freed() {
    const std::lock_guard lock(all_.mutex_);
    for (const auto& block : all_.blocks_)
      if (block.second.pool == graph_.pool && block.second.freed) Blocks::fill(block);
  }

  /// Bytes of freed memory, of no graph's, among the blocks at these addresses.
  std::size_t freed_among(const std::vector<std::byte*>& blocks) const {
    const std::lock_guard lock(all_.mutex_);
    std::size_t bytes = 0;
    for (std::byte* data : blocks) {
      const auto found = all_.blocks_.find(data);
      if (found != all_.blocks_.end() && !found->second.pool && found->second.freed)
        bytes += found->second.bytes;
    }
    return bytes;
  }
  /// Bytes of such memory that have changed since it was freed; they are lost again.
  std::size_t changed_after_free() {
    const std::lock_guard lock(all_.mutex_);
    std::size_t changed = 0;
    for (const auto& block : all_.blocks_) {
      const auto& [data, what] = block;
      if (what.pool || !what.freed || !Blocks::could_refer_to(graph_, what)) continue;
      const auto untouched = std::count(data, data + what.bytes, std::byte{0xFF});
      changed += what.bytes - static_cast<std::size_t>(untouched);
      Blocks::fill(block);
    }
    return changed;
  }

 private:
  Blocks& all_ = Blocks::all();
  Blocks::Graph graph_;
};

}  // namespace second_device
