#include "lab/report/decimate.h"

#include <algorithm>
#include <cmath>

namespace demi::report {
namespace {

/// Appends the visible part of points[first, last), which share a column and have no gap.
void append_column(const std::vector<Point>& points, std::size_t first, std::size_t last,
                   std::vector<Point>& out) {
  const auto lower = [&](std::size_t a, std::size_t b) { return points[a].y < points[b].y; };
  std::vector<std::size_t> order(last - first);
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = first + i;
  const auto [lowest, highest] = std::minmax_element(order.begin(), order.end(), lower);
  std::vector<std::size_t> kept = {first, *lowest, *highest, last - 1};
  std::sort(kept.begin(), kept.end());
  kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
  for (const std::size_t i : kept) out.push_back(points[i]);
}

}  // namespace

std::vector<Point> decimate(const std::vector<Point>& points) {
  std::vector<Point> out;
  for (std::size_t first = 0; first < points.size();) {
    if (std::isnan(points[first].y)) {
      if (!out.empty() && !std::isnan(out.back().y)) out.push_back(points[first]);
      ++first;
      continue;
    }
    std::size_t last = first + 1;
    while (last < points.size() && !std::isnan(points[last].y) &&
           std::floor(points[last].x) == std::floor(points[first].x)) {
      ++last;
    }
    append_column(points, first, last, out);
    first = last;
  }
  return out;
}

std::vector<double> smoothed(const std::vector<double>& values, double weight) {
  std::vector<double> out;
  double mean = 0;
  double share = 0;  // 1 - w^i
  for (const double value : values) {
    if (!std::isfinite(value)) {
      out.push_back(value);
      continue;
    }
    mean = weight * mean + (1 - weight) * value;
    share = weight * share + (1 - weight);
    out.push_back(mean / share);
  }
  return out;
}

}  // namespace demi::report
