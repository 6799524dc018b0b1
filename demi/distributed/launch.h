#pragma once

#include <functional>
#include <optional>
#include <string>

#include "demi/core/export.h"

namespace demi::distributed {

/// An environment variable's value; nothing if it is not set or empty.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;
DEMI_API Variables environment();

/// The rank of this process, as the program that started it says.
///
/// | started by | variables                                                                    |
/// |------------|------------------------------------------------------------------------------|
/// | torchrun   | RANK, WORLD_SIZE, LOCAL_RANK; also what people set by hand                   |
/// | mpirun     | OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK; PMI_RANK, PMI_SIZE, MPI_LOCALRANKID |
/// | srun       | SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID                            |
struct Ranks {
  std::string launcher = "none";  // "torchrun", "mpirun", "srun", "options", "none"
  int rank = 0;
  int world_size = 1;
  std::optional<int> local_rank = std::nullopt;  // among the processes of this machine
  std::string named;  // "RANK=1, WORLD_SIZE=4": which variables said so, and what
};

/// The first launcher in the order above. PMI_RANK and PMI_SIZE that equal srun's are srun's
/// (--mpi=pmi2). Without any of the variables: one rank. Throws DeviceError for a variable that is
/// missing, is no number or is out of range, and where two launchers contradict each other (one
/// that started a single task is ignored).
DEMI_API Ranks read_ranks(const Variables& variables);

/// LOCAL_RANK, for ranks that are set by other means. Throws DeviceError if it is no whole number
/// from 0.
DEMI_API std::optional<int> read_local_rank(const Variables& variables);

/// The address of the store through which the ranks find each other.
struct StoreAddress {
  std::string host;
  int port = 0;
  /// torchrun's agent serves the store already (TORCHELASTIC_USE_AGENT_STORE).
  bool served_by_agent = false;
  std::string named;  // "MASTER_ADDR=node1, MASTER_PORT=29500"
};

/// Reads MASTER_ADDR and MASTER_PORT. Under srun, if neither is set, the address is the first
/// machine of SLURM_STEP_NODELIST, and the port 20,000 plus the last four digits of SLURM_JOB_ID.
/// Throws DeviceError.
DEMI_API StoreAddress read_store_address(const Variables& variables, const Ranks& ranks);

/// The meeting place of ranks: "env://" (the variables above), "tcp://HOST:PORT" or "file:///PATH".
/// The last two may end with "?rank=R&world_size=N".
struct InitMethod {
  enum class Kind { kEnvironment, kTcp, kFile };
  Kind kind = Kind::kEnvironment;
  std::string host;  // kTcp
  int port = 0;      // kTcp
  std::string path;  // kFile
  std::optional<int> rank = std::nullopt, world_size = std::nullopt;
};

/// Throws DeviceError for anything else.
DEMI_API InitMethod parse_init_method(const std::string& text);

/// "node[03-04,09],other" begins with "node03".
DEMI_API std::string first_host(const std::string& slurm_node_list);

}  // namespace demi::distributed
