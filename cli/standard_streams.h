#pragma once

namespace demi::cli {

/// The first thing in main. If stdin, stdout or stderr is closed, /dev/null takes its place:
/// else the next file that is opened gets its number, and what is printed goes into that file. A
/// reader of stdout or stderr that goes away ends nothing: a run without anybody to watch it is
/// still a run.
void open_standard_streams();

/// The last thing in main. Flushes stdout, and says so if that fails. Returns
/// `code`, or another one than 0 where results are missing.
int flush_results(int code);

}  // namespace demi::cli
