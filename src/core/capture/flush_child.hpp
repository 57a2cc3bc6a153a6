// The other process of Flusher::process. It follows one rank's folder on the node-local tier: what the run asks it to bring
// on, and, when the run has ended in whatever way, all that is still there.
#pragma once

#include <memory>
#include <string>

#include "base/result.hpp"
#include "platform/file_io.hpp"

namespace twinrun {

// The run's end of it. Not thread-safe.
class FlushChild {
   public:
    // program: a path; empty: twinrun_flush beside this library, in the bin folder next to it, or on PATH.
    static Result<std::unique_ptr<FlushChild>> start(const std::string& program, const std::string& local,
                                                     const std::string& history);
    // Error where there is no such program that can be run.
    static Result<> check(const std::string& program);
    ~FlushChild();  // lets it go on alone, and does not wait
    FlushChild(const FlushChild&) = delete;
    FlushChild& operator=(const FlushChild&) = delete;
    // "flush STEP", "drop STEP", "drop_data STEP": done when this returns. The error is the child's, or says that it is gone.
    Result<> ask(const std::string& command);

   private:
    FlushChild() = default;
    int socket_ = -1;
    int process_ = -1;
    int owner_ = 0;  // process that started it
    std::string received_;
};

// The child's end: reads commands from `socket` until it is closed, then flushes the rest. What could not be flushed is told in
// the error.
Result<> serve_flushes(FileSystem& system, int socket, const std::string& local, const std::string& history);

}  // namespace twinrun
