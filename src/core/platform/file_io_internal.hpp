// Private to the files of file_io.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "platform/file_io.hpp"

namespace twinrun::file_io {

// "path: cannot <what>: <the system's words>; <what to do>", in one line. Never throws.
Error system_error(const std::string& path, std::string_view what, int error_number);
Error out_of_memory(const std::string& what);
// An error whose message `words` builds; without words where there is no memory for them.
template <class Words>
Error say(ErrorCode code, Words&& words) {
    try {
        return {code, words()};
    } catch (const std::bad_alloc&) {
        return {code, {}};
    }
}
// Paths come from outside: a line feed in one must not split a message.
std::string printable(const std::string& path);
// Sets the time of change of an open file, if it may be set.
void set_time(int descriptor, std::int64_t mtime_ns);
// A NUL would silently name another file.
Result<> check_path(const std::string& path);

// Where one request stands. Both queues drive it: next() says what to ask of the kernel, advance()
// takes the answer.
class ReadProgress {
   public:
    struct Step {
        int descriptor = -1;
        std::uint64_t offset = 0;
        std::size_t bytes = 0;
        std::byte* to = nullptr;
    };

    ReadProgress() = default;
    explicit ReadProgress(const ReadRequest& request);

    Step next() const;
    // `result`: bytes read, or minus errno. True: finished, take the completion.
    bool advance(std::int64_t result);
    // The kernel could not do it without blocking: ask in a way that may block.
    bool would_block() const { return would_block_; }
    ReadCompletion take_completion();
    // Of an object elsewhere: the whole read, at once. Then take the completion.
    [[nodiscard]] bool remote() const { return request_.file->remote(); }
    void read_remote();

   private:
    void fail(std::int64_t result);

    ReadRequest request_;
    std::size_t needed_ = 0;
    std::size_t done_ = 0;
    int direct_ = -1;  // -1: through the page cache
    int descriptor_ = -1;
    int fruitless_ = 0;
    bool would_block_ = false;
    std::optional<Error> error_;
};

Result<> check_request(const ReadRequest& request);

// Builds a ring, asks for the operations needed and runs one: seccomp may allow the first and
// forbid the last.
Result<> probe_uring();
Result<std::unique_ptr<ReadQueue>> make_uring_queue(const ReadQueueOptions& options);
Result<std::unique_ptr<ReadQueue>> make_pread_queue(const ReadQueueOptions& options);
// A queue that gives reads of files to `local`, and those of objects elsewhere to threads of its
// own, which it starts with the first of them.
std::unique_ptr<ReadQueue> make_routed_queue(std::unique_ptr<ReadQueue> local);

// Moves all of `finished` to the end of `out`, or nothing where there is no memory for it.
Result<> deliver(std::vector<ReadCompletion>& finished, std::vector<ReadCompletion>& out);

// A queue in a forked child has neither its threads nor a ring of its own.
Error used_after_fork();

}  // namespace twinrun::file_io
