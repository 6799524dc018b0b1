#include "demi/distributed/rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <random>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "demi/distributed/collectives.h"
#include "demi/distributed/liveness.h"

namespace demi::distributed {
namespace {

using std::chrono::milliseconds;

constexpr const char* kStart = "distributed.start";
constexpr const char* kSession = "session";  // "ID WORLD_SIZE" of the last rank 0 that came
constexpr milliseconds kUntilReason{3'000};  // rank 0 knows who is missing
constexpr milliseconds kPause{20};           // between two looks at the store

std::string number_key(int rank) { return fmt::format("number/{}", rank); }
std::string answer_key(const std::string& number) { return "answer/" + number; }
std::string joined_key(const std::string& session, int rank) {
  return fmt::format("{}/joined/{}", session, rank);
}
std::string begin_key(const std::string& session) { return session + "/begin"; }

std::string random_number() {
  std::random_device bits;
  return fmt::format("{:08x}{:08x}", bits(), bits());
}

// c10d's exceptions of a store that is gone name no rank.
template <class Ask>
auto while_it_answers(const Store& store, const Ask& ask) {
  try {
    return ask();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw DeviceError({.where = kStart,
                       .what = "the store does not answer any more",
                       .seen = store.name(),
                       .accepted = "one that stays until all ranks have met",
                       .advice = "see the output of the process that serves it; LibTorch says: " +
                                 first_line(error)});
  }
}

}  // namespace

Rendezvous::Rendezvous(std::shared_ptr<Store> store, int rank, int world_size, milliseconds timeout,
                       std::function<std::optional<std::string>()> lost)
    : store_(std::move(store)),
      rank_(rank),
      world_size_(world_size),
      timeout_(timeout),
      pause_(std::max(kPause, milliseconds(world_size / 10))),  // the store serves all ranks
      deadline_(Clock::now() + timeout),
      lost_(std::move(lost)),
      number_(random_number()) {}

void Rendezvous::refuse_second(int rank) const {
  throw DeviceError({.where = kStart,
                     .what = "a rank is there twice",
                     .seen = fmt::format("rank {} in {}", rank, store_->name()),
                     .accepted = "one process for each rank",
                     .advice = "see which variables set the rank; name a second group "
                               "(ProcessGroupOptions::name)"});
}

void Rendezvous::check_lost(Liveness& liveness) const {
  if (const auto found = liveness.finding())
    throw DeviceError({.where = kStart,
                       .what = "the ranks have not met",
                       .seen = *found,
                       .accepted = "ranks that all come, and stay",
                       .advice = "see those ranks' own output"});
  check_lost();
}

void Rendezvous::check_lost() const {
  if (const auto why = lost_())
    throw DeviceError({.where = kStart,
                       .what = "not all ranks will come",
                       .seen = *why,
                       .accepted = "ranks that all start",
                       .advice = "see the output of that rank"});
}

// A process gives signs of life in its session; those of an earlier start do not change any more.
bool Rendezvous::is_alive(const std::string& session, int rank) {
  const std::string key = session + "/" + sign_key(rank);
  const auto sign = store_->get(key);
  if (!sign || Sign::parse(*sign).has_left) return false;
  const auto [before, is_first] = signs_.try_emplace(key, *sign);
  return !is_first && std::exchange(before->second, *sign) != *sign;
}

void Rendezvous::check_no_other_session() {
  const auto said = store_->get(kSession);
  if (!said) return;
  std::istringstream words(*said);
  std::string session;
  int size = 0;
  if (!(words >> session >> size) || !is_alive(session, 0)) return;
  if (size != world_size_)
    throw DeviceError({.where = kStart,
                       .what = "the ranks disagree on their number",
                       .seen = fmt::format("{} on rank {}, {} on rank 0", world_size_, rank_, size),
                       .accepted = "the same world size for all",
                       .advice = "start all processes by one command, or correct WORLD_SIZE"});
  if (rank_ == 0 || is_alive(session, rank_)) refuse_second(rank_);
}

std::string Rendezvous::session() {
  return while_it_answers(*store_, [&] { return find_session(); });
}

void Rendezvous::gather(const std::string& session, Liveness& liveness) {
  while_it_answers(*store_, [&] { wait_for_all(session, liveness); });
}

std::string Rendezvous::find_session() {
  if (rank_ == 0) {
    // A living rank 0 gives a sign within this time.
    const auto until = store_->get(kSession) ? Clock::now() + milliseconds(1'200) : Clock::now();
    do {
      check_no_other_session();
      std::this_thread::sleep_for(pause_);
    } while (Clock::now() < until);
    store_->set(number_key(0), number_);
    return number_;
  }
  store_->set(number_key(rank_), number_);
  while (true) {
    if (auto answer = store_->get(answer_key(number_))) return std::move(*answer);
    check_lost();
    check_no_other_session();
    if (Clock::now() > deadline_)
      throw DeviceError({.where = kStart,
                         .what = "not all ranks have come",
                         .seen = fmt::format("rank 0 of {} missing after {:.1f} s", world_size_,
                                             static_cast<double>(timeout_.count()) / 1e3),
                         .accepted = "all of them within ProcessGroupOptions::start_timeout",
                         .advice = "see whether these processes were started, and their output"});
    std::this_thread::sleep_for(pause_);
  }
}

void Rendezvous::wait_for_all(const std::string& session, Liveness& liveness) {
  const std::string size = std::to_string(world_size_);
  store_->set(joined_key(session, rank_), size);
  if (rank_ == 0) return let_all_in(session, liveness);
  while (!store_->get(begin_key(session))) {
    check_lost(liveness);
    if (Clock::now() > deadline_ + kUntilReason)
      throw DeviceError(
          {.where = kStart,
           .what = "the ranks have not met",
           .seen = fmt::format("no word of rank 0 after {:.1f} s",
                               static_cast<double>(timeout_.count()) / 1e3),
           .accepted = "ranks that all come within ProcessGroupOptions::start_timeout",
           .advice = "see the output of rank 0"});
    std::this_thread::sleep_for(pause_);
  }
}

void Rendezvous::end_all(Liveness& liveness, const Complaint& why) const {
  liveness.report(fmt::format("{}: {}", why.what, why.seen));
  throw DeviceError(why);
}

// A rank whose answer is not taken has another number, or will have it when it starts again.
void Rendezvous::let_all_in(const std::string& session, Liveness& liveness) {
  const std::string size = std::to_string(world_size_);
  store_->set(kSession, session + " " + size);
  std::map<int, std::string> answered;
  std::vector<int> missing(static_cast<std::size_t>(world_size_ - 1));
  std::iota(missing.begin(), missing.end(), 1);
  const auto has_come = [&](int rank) {
    const auto number = store_->get(number_key(rank));
    if (number && std::exchange(answered[rank], *number) != *number)
      store_->set(answer_key(*number), session);
    const auto said = store_->get(joined_key(session, rank));
    if (said && *said != size)
      end_all(liveness, {.where = kStart,
                         .what = "the ranks disagree on their number",
                         .seen = fmt::format("{} on rank {}, {} on rank 0", *said, rank, size),
                         .accepted = "the same world size for all",
                         .advice = "start all processes by one command, or correct WORLD_SIZE"});
    return said.has_value();
  };
  while (std::erase_if(missing, has_come), !missing.empty()) {
    check_lost(liveness);
    if (store_->get(number_key(0)) != number_) refuse_second(0);
    if (Clock::now() > deadline_)
      end_all(liveness,
              {.where = kStart,
               .what = "not all ranks have come",
               .seen = fmt::format("{} of {} missing after {:.1f} s", ranks_text(missing),
                                   world_size_, static_cast<double>(timeout_.count()) / 1e3),
               .accepted = "all of them within ProcessGroupOptions::start_timeout",
               .advice = "see whether these processes were started, and their output"});
    std::this_thread::sleep_for(pause_);
  }
  store_->set(begin_key(session), "yes");
}

}  // namespace demi::distributed
