#include "demi/distributed/launch.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "demi/core/error.h"

namespace demi::distributed {
namespace {

constexpr const char* kLaunch = "distributed.start";
constexpr int kPorts = 65535;

struct Launcher {
  const char* name;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  bool needs_both;  // the variables are set in environments that it did not start, too
};

constexpr std::array kLaunchers{
    Launcher{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", false},
    Launcher{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
             false},
    Launcher{"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", false},
    // A batch script has SLURM_PROCID too, but SLURM_STEP_NUM_TASKS comes from srun.
    Launcher{"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", true}};

std::string said(const std::string& name, const std::optional<std::string>& value) {
  return value ? name + "=" + *value : name + " is not set";
}

std::optional<int> whole_number(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

int number_in(const std::string& name, const std::string& value, int least, int greatest) {
  const std::optional<int> number = whole_number(value);
  if (!number || *number < least || *number > greatest)
    throw DeviceError(
        {.where = kLaunch,
         .what = "a variable is not a whole number in its range",
         .seen = said(name, value),
         .accepted = fmt::format("{} to {}", least, greatest),
         .advice = "correct it, or start the processes with torchrun, mpirun or srun"});
  return *number;
}

std::string required(const Variables& variables, const std::string& name, const std::string& beside,
                     const std::string& advice) {
  const std::optional<std::string> value = variables(name);
  if (!value)
    throw DeviceError({.where = kLaunch,
                       .what = "a variable is missing",
                       .seen = said(name, value) + "; " + beside,
                       .accepted = name + " beside it",
                       .advice = advice});
  return *value;
}

// srun --mpi=pmi2 sets PMI_RANK and PMI_SIZE too. Slurm's own variables do not come first, since
// MPICH's mpiexec starts its proxies by srun: SLURM_PROCID is then a machine's number.
bool is_sruns(const Launcher& launcher, const Variables& variables) {
  if (std::string_view(launcher.rank) != "PMI_RANK") return false;
  const auto rank = variables(launcher.rank), size = variables(launcher.world_size);
  return rank && size && rank == variables("SLURM_PROCID") &&
         size == variables("SLURM_STEP_NUM_TASKS");
}

bool is_used(const Launcher& launcher, const Variables& variables) {
  if (is_sruns(launcher, variables)) return false;
  const bool rank = variables(launcher.rank).has_value();
  const bool world_size = variables(launcher.world_size).has_value();
  return launcher.needs_both ? rank && world_size : rank || world_size;
}

Ranks ranks_of(const Launcher& launcher, const Variables& variables) {
  const auto rank_text = variables(launcher.rank), size_text = variables(launcher.world_size);
  const std::string both =
      said(launcher.rank, rank_text) + ", " + said(launcher.world_size, size_text);
  if (!rank_text || !size_text)
    throw DeviceError(
        {.where = kLaunch,
         .what = "one of two variables is missing",
         .seen = both,
         .accepted = "both of them, or neither",
         .advice = fmt::format("set {}", rank_text ? launcher.world_size : launcher.rank)});
  Ranks ranks{launcher.name, 0, 1, std::nullopt, both};
  ranks.world_size = number_in(launcher.world_size, *size_text, 1, std::numeric_limits<int>::max());
  ranks.rank = number_in(launcher.rank, *rank_text, 0, std::numeric_limits<int>::max());
  if (ranks.rank >= ranks.world_size)
    throw DeviceError(
        {.where = kLaunch,
         .what = "the rank is out of range",
         .seen = both,
         .accepted = fmt::format("{} from 0 to {}", launcher.rank, ranks.world_size - 1),
         .advice = "ranks count from 0; start as many processes as the world size says"});
  if (const auto local = variables(launcher.local_rank))
    ranks.local_rank = number_in(launcher.local_rank, *local, 0, ranks.rank);
  return ranks;
}

// torchrun may run below srun or mpirun, one task a machine: then it alone counts.
bool starts_inside_others(const Ranks& ranks, const Variables& variables) {
  return ranks.launcher == "torchrun" && variables("TORCHELASTIC_RUN_ID").has_value();
}

bool contradict(const Ranks& a, const Ranks& b) {
  if (a.world_size == 1 || b.world_size == 1) return false;  // it started a launcher, or nothing
  return a.rank != b.rank || a.world_size != b.world_size;
}

bool is_true(const std::optional<std::string>& value) {
  return value && (*value == "True" || *value == "true" || *value == "1");
}

std::optional<int> parse_port(std::string_view text) {
  const std::optional<int> port = whole_number(text);
  return port && *port >= 1 && *port <= kPorts ? port : std::nullopt;
}

[[noreturn]] void refuse_method(const std::string& text, const char* what) {
  throw DeviceError(
      {.where = kLaunch,
       .what = what,
       .seen = "init_method=" + text,
       .accepted =
           "env://, tcp://HOST:PORT with a port from 1 to 65535, file:///PATH; the last two "
           "also with ?rank=R&world_size=N",
       .advice = "tcp://[::1]:29500 is the form for an IPv6 address"});
}

// "rank=1&world_size=4"
void read_query(const std::string& text, std::string_view query, InitMethod& method) {
  while (!query.empty()) {
    const std::string_view part = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), part.size() + 1));
    const size_t equals = part.find('=');
    const std::string_view name = part.substr(0, equals);
    const std::optional<int> number =
        equals == std::string_view::npos ? std::nullopt : whole_number(part.substr(equals + 1));
    if (!number || (name != "rank" && name != "world_size"))
      refuse_method(text, "the address ends with something unknown");
    (name == "rank" ? method.rank : method.world_size) = number;
  }
}

}  // namespace

Variables environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (!value || !*value) return std::nullopt;
    return value;
  };
}

Ranks read_ranks(const Variables& variables) {
  std::optional<Ranks> chosen;
  for (const Launcher& launcher : kLaunchers) {
    if (!is_used(launcher, variables)) continue;
    if (!chosen) {
      chosen = ranks_of(launcher, variables);
      if (starts_inside_others(*chosen, variables)) break;
      continue;
    }
    const Ranks other = ranks_of(launcher, variables);
    if (contradict(*chosen, other))
      throw DeviceError(
          {.where = kLaunch,
           .what = "two launchers contradict each other",
           .seen = chosen->named + " against " + other.named,
           .accepted = "one of them, or the same ranks",
           .advice = "unset the variables of the launcher that did not start this process"});
    if (chosen->world_size == 1) chosen = other;
  }
  return chosen.value_or(Ranks{});
}

std::optional<int> read_local_rank(const Variables& variables) {
  const std::optional<std::string> value = variables("LOCAL_RANK");
  if (!value) return std::nullopt;
  return number_in("LOCAL_RANK", *value, 0, std::numeric_limits<int>::max());
}

StoreAddress read_store_address(const Variables& variables, const Ranks& ranks) {
  StoreAddress address;
  const auto host = variables("MASTER_ADDR"), port = variables("MASTER_PORT");
  const auto nodes = variables("SLURM_STEP_NODELIST");
  const auto job = variables("SLURM_JOB_ID");
  if (!host && !port && ranks.launcher == "srun" && nodes && job) {
    address.host = first_host(*nodes);
    const std::string digits = job->size() > 4 ? job->substr(job->size() - 4) : *job;
    address.port = 20000 + number_in("SLURM_JOB_ID", digits, 0, 9999);
    address.named = said("SLURM_STEP_NODELIST", nodes) + ", " + said("SLURM_JOB_ID", job);
  } else {
    const std::string advice =
        "set it to the machine of rank 0 and to a free port there, the same for all ranks: "
        "mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500, or use init_method tcp://HOST:PORT";
    address.host = required(variables, "MASTER_ADDR", ranks.named, advice);
    address.port = number_in("MASTER_PORT", required(variables, "MASTER_PORT", ranks.named, advice),
                             1, kPorts);
    address.named = said("MASTER_ADDR", host) + ", " + said("MASTER_PORT", port);
  }
  address.served_by_agent = is_true(variables("TORCHELASTIC_USE_AGENT_STORE"));
  if (address.served_by_agent) {
    address.named += ", TORCHELASTIC_USE_AGENT_STORE=True";
  }
  return address;
}

InitMethod parse_init_method(const std::string& text) {
  InitMethod method;
  std::string_view rest = text;
  if (rest == "env://") return method;
  const size_t question = rest.find('?');
  if (question != std::string_view::npos) read_query(text, rest.substr(question + 1), method);
  rest = rest.substr(0, question);
  constexpr std::string_view kTcp = "tcp://", kFile = "file://";
  if (rest.starts_with(kTcp)) {
    rest.remove_prefix(kTcp.size());
    const size_t colon = rest.rfind(':');
    const std::optional<int> port = colon == std::string_view::npos || colon == 0
                                        ? std::nullopt
                                        : parse_port(rest.substr(colon + 1));
    if (!port) refuse_method(text, "the address has no host or no port");
    std::string_view host = rest.substr(0, colon);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']')
      host = host.substr(1, host.size() - 2);
    method.kind = InitMethod::Kind::kTcp;
    method.host = host;
    method.port = *port;
    return method;
  }
  if (rest.starts_with(kFile) && rest.size() > kFile.size() && rest[kFile.size()] == '/') {
    method.kind = InitMethod::Kind::kFile;
    method.path = rest.substr(kFile.size());
    return method;
  }
  refuse_method(text, "there is no such way to meet");
}

std::string first_host(const std::string& slurm_node_list) {
  const std::string_view list = slurm_node_list;
  const size_t bracket = list.find('['), comma = list.find(',');
  if (bracket == std::string_view::npos || bracket > comma)
    return std::string(list.substr(0, comma));
  const size_t close = list.find(']', bracket);
  const std::string_view inside = list.substr(bracket + 1, close - bracket - 1);
  const std::string_view after =
      close == std::string_view::npos ? std::string_view() : list.substr(close + 1);
  return fmt::format("{}{}{}", list.substr(0, bracket),
                     inside.substr(0, inside.find_first_of("-,")),
                     after.substr(0, after.find(',')));
}

}  // namespace demi::distributed
