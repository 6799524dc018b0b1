#pragma once

namespace demi::cli {

/// The first thing in main. If stdin, stdout or stderr is closed, /dev/null takes its place:
/// else the next file that is opened gets its number, and what is printed goes into that file. A
/// reader of stdout or stderr that goes away ends nothing: a run without anybody to watch it is
/// still a run.
void open_standard_streams();

/// Flushes stdout, and reports a failure. Called last in main. Returns `code`, or a code other than
/// 0 if results are missing.
int flush_results(int code);

}  // namespace demi::cli
