// Stop requests from outside: SIGTERM, SIGINT and SIGUSR1.
#pragma once

namespace olmo {

// Starts a thread that takes the signals; threads that exist later never do. Call it before anything that starts
// threads. The first signal asks the loop to save and stop after the step it is in; one that comes at least 5 s after
// the first ends the process at once with status 1 (a launcher and a scheduler may both deliver the first). SIGPIPE is
// ignored from then on: a run does not end because nobody reads its output.
void watch_stop_signals();

// Number of the signal that asked to stop, 0 if none did.
int stop_signal();

}  // namespace olmo
