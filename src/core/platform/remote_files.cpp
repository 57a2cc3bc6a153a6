#include "platform/remote_files.hpp"

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace twinrun {

namespace {

struct Known {
    std::mutex mutex;
    std::shared_ptr<const RangeReader> reader;
    std::unordered_map<std::string, std::uint64_t> sizes;
    std::atomic<bool> any{false};  // most processes never have one
};

// Not destroyed: threads may still open files when the process ends.
Known& known() {
    static auto* const all = new Known;
    return *all;
}

}  // namespace

void set_range_reader(RangeReader reader) {
    auto shared = std::make_shared<const RangeReader>(std::move(reader));
    const std::lock_guard lock(known().mutex);
    known().reader.swap(shared);
}

void add_remote_file(const std::string& name, std::uint64_t size) {
    const std::lock_guard lock(known().mutex);
    known().sizes[name] = size;
    known().any.store(true);
}

void remove_remote_file(const std::string& name) {
    const std::lock_guard lock(known().mutex);
    known().sizes.erase(name);
    known().any.store(!known().sizes.empty());
}

std::optional<RemoteFile> remote_file(const std::string& name) {
    if (!known().any.load(std::memory_order_relaxed)) return std::nullopt;
    const std::lock_guard lock(known().mutex);
    const auto found = known().sizes.find(name);
    if (found == known().sizes.end() || known().reader == nullptr) return std::nullopt;
    return RemoteFile{found->second, known().reader};
}

}  // namespace twinrun
