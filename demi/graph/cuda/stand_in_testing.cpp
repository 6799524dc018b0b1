// Replaces libdemi_graph.so, without LibTorch and CUDA. Several libraries are built from this file,
// each of which does what its macro names.
#include <stdexcept>

#include "demi/graph/cuda/plugin.h"

#ifndef DEMI_GRAPH_is_empty

namespace demi::graph {

struct Recording {
  const Recording* beside = nullptr;
};

namespace {

// How often each was called since it was asked: digits of one number, from the last on.
int calls = 0;
constexpr int kMade = 1, kBegun = 10, kEnded = 100, kAbandoned = 1'000, kReplayed = 10'000,
              kDestroyed = 100'000, kShares = 1'000'000;

void count(int what) { calls += what; }

void count_or_throw(int what) {
  count(what);
#ifdef DEMI_GRAPH_throws
  throw std::runtime_error("CUDA error: operation not permitted\nwith a second line");
#endif
}

#ifdef DEMI_GRAPH_fails_at_its_end
void end(Recording&) {
  count(kEnded);
  throw std::runtime_error("CUDA error: operation failed due to a previous error during capture");
}
#else
void end(Recording&) { count_or_throw(kEnded); }
#endif

Recording* make(int, const Recording* beside) {
  count(beside ? kMade + kShares : kMade);
  return new Recording{beside};
}
void begin(Recording&) { count_or_throw(kBegun); }
void abandon(Recording&) noexcept { count(kAbandoned); }
void replay(Recording&) { count_or_throw(kReplayed); }
void destroy(Recording* recording) noexcept {
  count(kDestroyed);
  delete recording;
}

}  // namespace
}  // namespace demi::graph

extern "C" __attribute__((visibility("default"))) int demi_graph_calls() {
  const int all = demi::graph::calls;
  demi::graph::calls = 0;
  return all;
}

extern "C" __attribute__((visibility("default"))) const demi::graph::GraphPlugin*
demi_graph_plugin() {
  using namespace demi::graph;
  static const GraphPlugin plugin{
#ifdef DEMI_GRAPH_is_older
      .bytes = sizeof(GraphPlugin) - 8,
#endif
#ifdef DEMI_GRAPH_has_another_libtorch
      .libtorch = "2.14.1",
#else
      .libtorch = "2.15.1",
#endif
#ifdef DEMI_GRAPH_has_another_cuda
      .cuda_header = 12080,
#else
      .cuda_header = 13000,
#endif
      .cuda_of_libtorch = [] { return 13020; },
#ifdef DEMI_GRAPH_has_no_device
      .devices = [] { return 0; },
#else
      .devices = [] { return 2; },
#endif
      .make = &make,
      .begin = &begin,
      .end = &end,
      .abandon = &abandon,
      .replay = &replay,
      .destroy = &destroy};
  return &plugin;
}

#endif
