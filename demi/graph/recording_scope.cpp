#include "demi/graph/recording_scope.h"

#include <utility>

namespace demi::graph {
namespace {

thread_local constinit RecordingScope* current_recording = nullptr;

}  // namespace

RecordingScope::RecordingScope() : outer_(std::exchange(current_recording, this)) {}
RecordingScope::~RecordingScope() { current_recording = outer_; }

RecordingScope* RecordingScope::current() { return current_recording; }

}  // namespace demi::graph
