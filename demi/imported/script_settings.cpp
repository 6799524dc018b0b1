#include "demi/imported/script_settings.h"

#include <torch/csrc/jit/passes/autocast.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <mutex>

namespace demi::imported {
namespace {

struct Before {
  std::mutex mutex;
  int users = 0;
  bool autocast = true, profiling = true;
};

// Never destroyed: threads that outlive static objects may still run a network.
Before& before() {
  static auto* one = new Before;  // NOLINT(cppcoreguidelines-owning-memory)
  return *one;
}

}  // namespace

ScriptSettings::ScriptSettings() {
  Before& settings = before();
  const std::scoped_lock lock(settings.mutex);
  if (settings.users++ > 0) return;
  settings.autocast = torch::jit::setAutocastMode(false);
  settings.profiling = torch::jit::getProfilingMode().exchange(false);
}

ScriptSettings::~ScriptSettings() {
  Before& settings = before();
  const std::scoped_lock lock(settings.mutex);
  if (--settings.users > 0) return;
  torch::jit::setAutocastMode(settings.autocast);
  torch::jit::getProfilingMode() = settings.profiling;
}

}  // namespace demi::imported
