// Reads of objects elsewhere wait for a network: many at once, in threads of their own, beside the
// queue for files.

#include <algorithm>
#include <new>
#include <utility>

#include "platform/file_io_internal.hpp"

namespace twinrun::file_io {

namespace {

// Requests of one worker that are under way at once. A range of 1 MiB takes some 50 ms, most of it
// waiting: eight of them are some 150 MB/s.
constexpr int kRemoteThreads = 8;

bool is_remote(const ReadRequest& request) { return request.file != nullptr && request.file->remote(); }

class RoutedQueue final : public ReadQueue {
   public:
    explicit RoutedQueue(std::unique_ptr<ReadQueue> local) : local_(std::move(local)) {}

    const char* name() const override { return local_->name(); }
    std::size_t depth() const override { return local_->depth(); }
    std::size_t outstanding() const override {
        return local_->outstanding() + (remote_ == nullptr ? 0 : remote_->outstanding());
    }
    Result<> register_buffers(std::span<const std::span<std::byte>> buffers) override {
        return local_->register_buffers(buffers);
    }

    Result<> submit(std::span<const ReadRequest> requests) override {
        if (std::none_of(requests.begin(), requests.end(), is_remote)) return local_->submit(requests);
        for (const ReadRequest& request : requests)
            TWR_CHECK(check_request(request));
        try {
            sorted_.assign(requests.begin(), requests.end());
        } catch (const std::bad_alloc&) {
            return out_of_memory("read queue");
        }
        const auto middle = std::partition(sorted_.begin(), sorted_.end(), is_remote);
        if (remote_ == nullptr) {
            ReadQueueOptions options;
            options.backend = ReadBackend::pread;
            options.depth = local_->depth();
            options.threads = kRemoteThreads;
            TWR_TRY(remote_, make_pread_queue(options));
        }
        // Where the second one has no memory the first ones are under way: the caller ends its run,
        // and waits for them as for all.
        TWR_CHECK(remote_->submit({sorted_.begin(), middle}));
        return local_->submit({middle, sorted_.end()});
    }

    Result<> wait(std::size_t at_least, std::vector<ReadCompletion>& out) override {
        if (remote_ == nullptr || remote_->outstanding() == 0) return local_->wait(at_least, out);
        // Files answer soon. So waiting for them first holds nothing up.
        const std::size_t before = out.size();
        TWR_CHECK(local_->wait(std::min(at_least, local_->outstanding()), out));
        const std::size_t came = out.size() - before;
        return remote_->wait(at_least > came ? at_least - came : 0, out);
    }

   private:
    std::unique_ptr<ReadQueue> local_;
    std::unique_ptr<ReadQueue> remote_;  // null: none was needed yet
    std::vector<ReadRequest> sorted_;
};

}  // namespace

std::unique_ptr<ReadQueue> make_routed_queue(std::unique_ptr<ReadQueue> local) {
    return std::make_unique<RoutedQueue>(std::move(local));
}

}  // namespace twinrun::file_io
