#include "demi/core/error.h"

namespace demi {

std::string describe(const Complaint& complaint) {
  std::string text;
  if (!complaint.where.empty()) text.append("[").append(complaint.where).append("] ");
  text.append(complaint.what);
  if (!complaint.seen.empty()) text.append("; seen: ").append(complaint.seen);
  if (!complaint.accepted.empty()) text.append("; accepted: ").append(complaint.accepted);
  if (!complaint.advice.empty()) text.append("; ").append(complaint.advice);
  return text;
}

}  // namespace demi
