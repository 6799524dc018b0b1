#include "demi/distributed/sharding.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>

#include "demi/distributed/process_group.h"

namespace demi::distributed {
namespace {

constexpr const char* kWhat = "optimizer step";  // is named if a collective fails

/// A round of the exchange: some bytes of every rank's stream, from the same offset on.
class Round {
 public:
  /// Room for `most` bytes of each rank.
  void allocate(std::int64_t most, at::Device device, int ranks) {
    if (!memory_.defined())
      memory_ = at::empty({most * ranks}, at::device(device).dtype(at::kByte));
  }

  // c10d's NCCL makes its stream wait for the current one, on which update and packing are.
  void start(const std::vector<ByteStream>& streams, std::int64_t begin, std::int64_t most,
             ProcessGroup& group) {
    begin_ = begin;
    std::vector<std::int64_t> sizes;
    for (const ByteStream& stream : streams)
      sizes.push_back(std::clamp<std::int64_t>(stream.size() - begin, 0, most));
    const std::int64_t longest = *std::max_element(sizes.begin(), sizes.end());
    const std::int64_t sum = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    pieces_.clear();
    for (std::size_t r = 0; r < sizes.size(); ++r)
      pieces_.push_back(memory_.narrow(0, static_cast<std::int64_t>(r) * longest, sizes[r]));
    const auto own = static_cast<std::size_t>(group.rank());
    if (sizes[own] > 0) streams[own].read(begin, pieces_[own]);
    const auto ranks = static_cast<std::int64_t>(sizes.size());
    if (!memory_.is_cpu() && ranks * longest < 2 * sum) {
      const at::Tensor all = memory_.narrow(0, 0, ranks * longest);
      const at::Tensor part = all.narrow(0, group.rank() * longest, longest);
      sent_.push_back(group.start_all_gather(all, part, kWhat));
      return;
    }
    for (std::size_t r = 0; r < sizes.size(); ++r)
      if (sizes[r] > 0)
        sent_.push_back(group.start_broadcast(pieces_[r], static_cast<int>(r), kWhat));
  }

  // wait() makes the current stream wait for NCCL's, so unpacking and the next forward come after.
  void finish(const std::vector<ByteStream>& streams, int own) {
    for (ProcessGroup::Pending& sent : sent_) sent.wait();
    sent_.clear();
    for (std::size_t r = 0; r < pieces_.size(); ++r)
      if (static_cast<int>(r) != own && pieces_[r].numel() > 0)
        streams[r].write(begin_, pieces_[r]);
  }

  bool is_under_way() const { return !sent_.empty(); }

 private:
  at::Tensor memory_;               // uint8, (ranks x bytes)
  std::int64_t begin_ = 0;          // in each stream
  std::vector<at::Tensor> pieces_;  // by rank: its bytes in memory_
  std::vector<ProcessGroup::Pending> sent_;
};

}  // namespace

ByteStream::ByteStream(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::int64_t end = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    bytes_.push_back(tensor.detach().as_strided({tensor.numel()}, {1}).view(at::kByte));
    ends_.push_back(end += bytes_.back().numel());
  }
}

template <class Act>
void ByteStream::each_part(std::int64_t begin, const at::Tensor& piece, Act act) const {
  const at::NoGradGuard no_grad;
  const std::int64_t end = begin + piece.numel();
  auto i =
      static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
  for (std::int64_t at = begin; at < end; ++i) {
    const std::int64_t size = std::min(end, ends_[i]) - at;
    act(bytes_[i].narrow(0, bytes_[i].numel() - (ends_[i] - at), size),
        piece.narrow(0, at - begin, size));
    at += size;
  }
}

void ByteStream::read(std::int64_t begin, const at::Tensor& piece) const {
  each_part(begin, piece, [](at::Tensor own, at::Tensor part) { part.copy_(own); });
}

void ByteStream::write(std::int64_t begin, const at::Tensor& piece) const {
  each_part(begin, piece, [](at::Tensor own, at::Tensor part) { own.copy_(part); });
}

std::vector<int> owners_of_tensors(const std::vector<std::int64_t>& elements, int ranks) {
  std::vector<std::size_t> order(elements.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return elements[a] > elements[b]; });
  std::vector<std::int64_t> load(static_cast<std::size_t>(ranks));
  std::vector<int> owners(elements.size());
  for (const std::size_t tensor : order) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += elements[tensor];
    owners[tensor] = static_cast<int>(least - load.begin());
  }
  return owners;
}

void exchange_streams(const std::vector<ByteStream>& streams, std::int64_t bucket_bytes,
                      at::Device device, ProcessGroup& group) {
  std::int64_t longest = 0;
  for (const ByteStream& stream : streams) longest = std::max(longest, stream.size());
  const auto ranks = static_cast<int>(streams.size());
  const std::int64_t most = std::min(longest, std::max<std::int64_t>(1, bucket_bytes / ranks));
  std::array<Round, 2> rounds;
  std::size_t turn = 0;
  for (std::int64_t begin = 0; begin < longest; begin += most, turn = 1 - turn) {
    rounds[turn].allocate(most, device, ranks);
    rounds[turn].start(streams, begin, most, group);
    if (rounds[1 - turn].is_under_way()) rounds[1 - turn].finish(streams, group.rank());
  }
  if (rounds[1 - turn].is_under_way()) rounds[1 - turn].finish(streams, group.rank());
}

}  // namespace demi::distributed
