#include "demi/distributed/start.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "demi/core/error.h"
#include "demi/distributed/c10d.h"

namespace demi::distributed {

void check_options(const ProcessGroupOptions& options) {
  constexpr const char* kWhere = "distributed.start";
  if (options.rank.has_value() != options.world_size.has_value())
    refuse({.where = kWhere,
            .what = "one of two options is missing",
            .seen = options.rank ? "rank alone" : "world_size alone",
            .accepted = "rank and world_size, or neither",
            .advice = "give both"});
  if (options.rank &&
      (*options.world_size < 1 || *options.rank < 0 || *options.rank >= *options.world_size))
    refuse({.where = kWhere,
            .what = "the rank is out of range",
            .seen = fmt::format("rank {} of {}", *options.rank, *options.world_size),
            .accepted = "a rank from 0 to world_size - 1",
            .advice = "ranks count from 0"});
  const std::chrono::milliseconds least =
      std::min({options.start_timeout, options.timeout, options.dead_after});
  if (least < std::chrono::milliseconds(1))
    refuse({.where = kWhere,
            .what = "a timeout is not positive",
            .seen = fmt::format("{} ms", least.count()),
            .accepted = "1 ms or more",
            .advice = "leave it out for the default"});
}

Ranks ranks_of(const ProcessGroupOptions& options, const InitMethod& method) {
  if (method.rank.has_value() != method.world_size.has_value())
    throw DeviceError({.where = "distributed.start",
                       .what = "one of two numbers is missing",
                       .seen = options.init_method,
                       .accepted = "?rank=R&world_size=N, or neither",
                       .advice = "give both"});
  const auto rank = options.rank ? options.rank : method.rank;
  const auto size = options.world_size ? options.world_size : method.world_size;
  if (!rank) return read_ranks(environment());
  const std::string named = fmt::format("rank {} of {} in the options", *rank, *size);
  if (*size < 1 || *rank < 0 || *rank >= *size)
    throw DeviceError({.where = "distributed.start",
                       .what = "the rank is out of range",
                       .seen = options.init_method,
                       .accepted = "rank from 0 to world_size - 1",
                       .advice = "ranks count from 0"});
  Ranks ranks{"options", *rank, *size, std::nullopt, named};
  ranks.local_rank = read_local_rank(environment());
  return ranks;
}

std::shared_ptr<Store> store_of(const ProcessGroupOptions& options, const InitMethod& method,
                                const Ranks& ranks) {
  if (method.kind == InitMethod::Kind::kFile) return file_store(method.path, ranks.world_size);
  StoreAddress address{method.host, method.port, false, "init_method=" + options.init_method};
  if (method.kind == InitMethod::Kind::kEnvironment)
    address = read_store_address(environment(), ranks);
  return reach_store(address, ranks.rank == 0 && !address.served_by_agent, options.start_timeout);
}

}  // namespace demi::distributed
