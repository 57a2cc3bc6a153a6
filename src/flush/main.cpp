// SPDX-License-Identifier: Apache-2.0
// twinrun_flush LOCAL HISTORY: the process that moves one rank's steps from the node-local tier to
// the history, for runs with the setting flusher = process. The run sends commands through its
// standard input, a socket. When that is closed it moves the remaining steps, and ends.
#include <csignal>
#include <cstdio>

#include "capture/flush_child.hpp"

int main(int argc, char** argv) {
    if (argc != 3) {
        std::fprintf(stderr,
                     "usage: twinrun_flush LOCAL HISTORY  (started by a run; by hand: twinrun flush)\n");
        return 2;
    }
    // Signals that end the run must not end the process that saves its steps.
    for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGPIPE})
        std::signal(signal, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);  // a file above the limit of sizes is an error like a full disk
    const auto served = twinrun::serve_flushes(twinrun::posix_file_system(), 0, argv[1], argv[2]);
    if (served) return 0;
    std::fprintf(stderr, "twinrun_flush: %s\n", served.error().message.c_str());
    return 2;
}
