#pragma once

namespace demi::cli {

/// From now on the first SIGHUP, SIGINT or SIGTERM is only noted, so that the step in progress ends
/// and what there is can be written; a second one leaves at once.
void catch_stop_signals();

/// The signal that was noted, or 0.
int stop_signal();

}  // namespace demi::cli
