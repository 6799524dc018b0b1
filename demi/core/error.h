#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "demi/core/export.h"

namespace demi {

/// The parts of an error message, in the order in which they are printed. Empty parts are left out:
/// `[where] what; seen: ...; accepted: ...; advice`.
struct Complaint {
  std::string_view where;     // module.function
  std::string_view what;      // what is wrong
  std::string_view seen;      // the wrong value
  std::string_view accepted;  // the values that are right
  std::string_view advice;    // what to do about it
};

/// The message as one line of text.
DEMI_API std::string describe(const Complaint& complaint);

/// Base of all exceptions that demi throws. LibTorch's own exceptions (c10::Error) pass through
/// unchanged.
class DEMI_API Error : public std::runtime_error {
 public:
  explicit Error(const Complaint& complaint) : std::runtime_error(describe(complaint)) {}
};

/// The caller's mistake: an argument, option or order of calls that is not accepted. The program
/// exits with 2.
class DEMI_API UsageError : public Error {
 public:
  using Error::Error;
};

/// A data set, checkpoint or other file that is missing, damaged or of another kind. The program
/// exits with 3.
class DEMI_API DataError : public Error {
 public:
  using Error::Error;
};

/// A device, driver or process group that cannot be used. The program exits with 4.
class DEMI_API DeviceError : public Error {
 public:
  using Error::Error;
};

/// Training that cannot go on: a loss that is NaN, a disk that is full. The program exits with 1.
class DEMI_API TrainingError : public Error {
 public:
  using Error::Error;
};

/// Throws the complaint, by default as the caller's mistake.
template <class Kind = UsageError>
[[noreturn]] void refuse(const Complaint& complaint) {
  throw Kind(complaint);
}

/// Refuses unless `accepted`. The complaint's parts are made in any case: where a text costs more
/// than it may, write `if (...) refuse(...)`.
template <class Kind = UsageError>
void require(bool accepted, const Complaint& complaint) {
  if (!accepted) refuse<Kind>(complaint);
}

}  // namespace demi
