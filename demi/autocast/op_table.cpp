#include "demi/autocast/op_table.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <deque>
#include <map>
#include <mutex>

#include "demi/autocast/kernels.h"
#include "demi/autocast/op_lists.h"
#include "demi/core/cuda_library.h"
#include "demi/core/error.h"

namespace demi {
namespace {

int index_of(c10::DeviceType device) { return static_cast<int>(device); }

// Everything below is never destroyed: kernels may run in threads that outlive static objects.
struct Registry {
  std::mutex mutex;
  std::map<std::string, int, std::less<>> numbers;
  std::vector<std::string> names;
  std::array<std::deque<OpTable>, kDeviceTypes> tables;
  std::array<std::vector<OpRule>, kDeviceTypes> user_rules;
  // Tables by fingerprint of device and policy: entering a region again compiles nothing.
  std::map<std::string, const OpTable*> compiled;
  OpPolicy global;
};

Registry& registry() {
  static auto* one = new Registry();
  return *one;
}

std::string with_namespace(std::string_view op) {
  return op.find("::") == std::string_view::npos ? "aten::" + std::string(op) : std::string(op);
}

// The functions below need the lock.
int number_of(Registry& r, std::string_view op) {
  const std::string name = with_namespace(op);
  if (const auto found = r.numbers.find(name); found != r.numbers.end()) return found->second;
  if (r.names.size() == kMostOps)
    refuse({.where = "autocast.OpPolicy",
            .what = "too many ops with a rule in this process",
            .seen = name,
            .accepted = std::to_string(kMostOps) + " ops",
            .advice = "give rules to fewer operators of your own"});
  r.names.push_back(name);
  return r.numbers[name] = static_cast<int>(r.names.size()) - 1;
}

std::vector<OpRule> defaults(Registry& r, c10::DeviceType device) {
  auto rules = default_op_rules(device);
  const auto& user = r.user_rules[index_of(device)];
  rules.insert(rules.end(), user.begin(), user.end());
  return rules;
}

const OpTable* intern(Registry& r, c10::DeviceType device, const OpTable& table) {
  auto& known = r.tables[index_of(device)];
  for (const auto& other : known)
    if (other.category == table.category) return &other;
  return &known.emplace_back(table);
}

std::string fingerprint(const OpPolicy& policy, c10::DeviceType device) {
  std::string text = c10::DeviceTypeName(device);
  for (const auto& rule : policy.changes())
    text.append(" ").append(rule.op).append("=").append(name_of(rule.category));
  return text;
}

const OpTable* compile(Registry& r, const OpPolicy& policy, c10::DeviceType device) {
  const std::string key = fingerprint(policy, device);
  if (const auto known = r.compiled.find(key); known != r.compiled.end()) return known->second;
  OpTable table;
  table.category.fill(OpCategory::unchanged);
  std::vector<int> named;
  const auto put = [&](const OpRule& rule) {
    const int number = number_of(r, rule.op);
    table.category[number] = rule.category;
    named.push_back(number);
  };
  for (const auto& rule : defaults(r, device)) put(rule);
  for (const auto& rule : policy.changes()) put(rule);
  for (const auto& op : dtype_sensitive_ops()) named.push_back(number_of(r, op));
  if (device == c10::DeviceType::CPU) {
    for (const auto& op : lstm_ops()) named.push_back(number_of(r, op));
    named.push_back(number_of(r, "gelu"));  // activation/gelu.h
  }
  const OpTable* result = intern(r, device, table);
  for (const int number : named) ensure_kernel(device, r.names[number], number);
  return r.compiled[key] = result;
}

// Makes the device's global table again, if a region or raw at::autocast has used it.
void renew_global_table(Registry& r, int device) {
  if (!global_tables[device].load()) return;
  global_tables[device].store(compile(r, r.global, static_cast<c10::DeviceType>(device)),
                              std::memory_order_release);
}

// Whether LibTorch's part for a device was there when kernels of ours were registered.
std::array<std::atomic<bool>, kDeviceTypes> part_was_there{};

// Registers our kernels again, once: the dispatcher calls those registered last. Other threads wait
// here before they enter a region, since LibTorch's kernels run while ours are away.
void renew_kernels_once(c10::DeviceType device) {
  auto& r = registry();
  const std::lock_guard lock(r.mutex);
  auto& was_there = part_was_there[index_of(device)];
  if (was_there.load(std::memory_order_relaxed)) return;
  std::erase_if(r.compiled, [&](const auto& entry) {
    return entry.first.starts_with(c10::DeviceTypeName(device));
  });
  drop_kernels(device);
  renew_global_table(r, index_of(device));
  was_there.store(true, std::memory_order_release);
}

}  // namespace

void bring_kernels(c10::DeviceType device) {
  if (device == c10::DeviceType::CUDA) load_cuda();
  const bool was_there = part_was_there[index_of(device)].load(std::memory_order_acquire);
  if (!was_there && c10::impl::hasDeviceGuardImpl(device)) renew_kernels_once(device);
  global_table(device);
}

int op_number(std::string_view op) {
  auto& r = registry();
  const std::lock_guard lock(r.mutex);
  return number_of(r, op);
}

std::string op_name(int number) {
  auto& r = registry();
  const std::lock_guard lock(r.mutex);
  return r.names.at(number);
}

const OpTable* table_of(const OpPolicy& policy, c10::DeviceType device) {
  auto& r = registry();
  const std::lock_guard lock(r.mutex);
  return compile(r, policy, device);
}

const OpTable* make_global_table(c10::DeviceType device) {
  auto& r = registry();
  const std::lock_guard lock(r.mutex);
  const OpTable* table = compile(r, r.global, device);
  global_tables[index_of(device)].store(table, std::memory_order_release);
  return table;
}

void add_default_rule(c10::DeviceType device, OpRule rule) {
  auto& r = registry();
  const std::lock_guard lock(r.mutex);
  r.user_rules[index_of(device)].push_back(std::move(rule));
  r.compiled.clear();
  renew_global_table(r, index_of(device));
}

OpPolicy global_op_policy() {
  auto& r = registry();
  const std::lock_guard lock(r.mutex);
  return r.global;
}

void set_global_op_policy(const OpPolicy& policy) {
  auto& r = registry();
  const std::lock_guard lock(r.mutex);
  r.global = policy;
  for (int i = 0; i < kDeviceTypes; ++i) renew_global_table(r, i);
}

void install_kernels(c10::DeviceType device) {
  auto& r = registry();
  const std::lock_guard lock(r.mutex);
  compile(r, r.global, device);
}

void remove_kernels(c10::DeviceType device) {
  auto& r = registry();
  const std::lock_guard lock(r.mutex);
  r.compiled.clear();
  drop_kernels(device);
}

}  // namespace demi
