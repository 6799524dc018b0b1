#pragma once

/// For a fork that calls a program's main(): from now on exit() ends the process before it destroys
/// what LibTorch registered while it was loaded, which would take a third of a start. What this
/// program made static, and what functions did, is destroyed as ever.
void end_before_libraries();
