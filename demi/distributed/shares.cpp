#include "demi/distributed/shares.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace demi::distributed {

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

}  // namespace demi::distributed
