// The other process of Flusher::process. It serves one rank's folder on the node-local tier: it
// copies the steps that the run names to the history and, when the run has ended in any way, all
// steps that are left.
#pragma once

#include <memory>
#include <string>

#include "base/result.hpp"
#include "platform/file_io.hpp"

namespace twinrun {

// The run's side of the connection. Owned by Tiers; not thread-safe.
class FlushChild {
   public:
    // Starts the program and waits until it has opened the history. program: a path; empty:
    // twinrun_flush beside this library, in the bin folder next to it, or on PATH. local: the
    // rank's folder. Errors: those of the program's start, and what the program reports.
    static Result<std::unique_ptr<FlushChild>> start(const std::string& program, const std::string& local,
                                                     const std::string& history);
    // Whether start() would find a program that this process may execute; starts nothing.
    static Result<> check(const std::string& program);
    // Ends the connection. A child with nothing to do ends at once; this waits at most a second for
    // it. A child that still copies steps goes on alone.
    ~FlushChild();
    FlushChild(const FlushChild&) = delete;
    FlushChild& operator=(const FlushChild&) = delete;
    // Sends a command and waits until it is done: "flush STEP", "drop STEP", "drop_data STEP" or
    // "reserve ORDINAL". Returns the child's error; io if the child has ended.
    Result<> ask(const std::string& command);

   private:
    FlushChild() = default;
    int socket_ = -1;
    int process_ = -1;
    int owner_ = 0;         // ID of the process that started the child
    std::string received_;  // bytes that were received after the last complete answer
};

// The child's side: executes commands from `socket` until the run closes it, then flushes the steps
// that are left. Errors: the history cannot be opened (the run gets it too); the first step that
// could not be flushed.
Result<> serve_flushes(FileSystem& system, int socket, const std::string& local, const std::string& history);

}  // namespace twinrun
