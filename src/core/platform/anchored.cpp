#include "platform/anchored.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <utility>

#include "platform/file_io_internal.hpp"

namespace twinrun {

namespace {

// A file's errors name the path by which it was opened.
class NamedFile final : public OutputFile {
   public:
    NamedFile(std::unique_ptr<OutputFile> file, std::function<Error(Error)> as_named)
        : file_(std::move(file)), as_named_(std::move(as_named)) {}
    Result<> write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
        return named(file_->write_at(offset, bytes));
    }
    Result<> sync() override { return named(file_->sync()); }
    void set_time(std::int64_t mtime_ns) override { file_->set_time(mtime_ns); }
    Result<> close() override { return named(file_->close()); }

   private:
    Result<> named(Result<> result) const {
        if (result) return result;
        return as_named_(std::move(result).error());
    }
    std::unique_ptr<OutputFile> file_;
    std::function<Error(Error)> as_named_;
};

}  // namespace

AnchoredFileSystem::AnchoredFileSystem(FileSystem& base, std::string root)
    : base_(base), root_(std::move(root)) {}

AnchoredFileSystem::~AnchoredFileSystem() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

Result<> AnchoredFileSystem::anchor() {
    if (descriptor_ >= 0) return success();
    do {
        descriptor_ = ::open(root_.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    } while (descriptor_ < 0 && errno == EINTR);
    if (descriptor_ < 0) return file_io::system_error(root_, "open the folder", errno);
    const std::string name = "/proc/self/fd/" + std::to_string(descriptor_);
    if (is_held(name)) held_ = name;
    return success();
}

bool AnchoredFileSystem::is_held(const std::string& path) const {
    struct stat there, ours;
    return ::stat(path.c_str(), &there) == 0 && ::fstat(descriptor_, &ours) == 0 &&
           there.st_dev == ours.st_dev && there.st_ino == ours.st_ino;
}

std::string AnchoredFileSystem::held(const std::string& path) const {
    if (held_.empty() || !path.starts_with(root_)) return path;
    if (path.size() == root_.size()) return held_;
    return path[root_.size()] == '/' ? held_ + path.substr(root_.size()) : path;
}

Error AnchoredFileSystem::as_named(Error error) const {
    if (held_.empty()) return error;
    for (std::size_t at = error.message.find(held_); at != std::string::npos;
         at = error.message.find(held_, at + root_.size()))
        error.message.replace(at, held_.size(), root_);
    return error;
}

Result<std::unique_ptr<OutputFile>> AnchoredFileSystem::create(const std::string& path,
                                                               std::uint64_t expected_bytes) {
    auto file = as_named(base_.create(held(path), expected_bytes));
    if (!file || held_.empty()) return file;
    return std::unique_ptr<OutputFile>(std::make_unique<NamedFile>(
        std::move(file).value(), [this](Error error) { return as_named(std::move(error)); }));
}
Result<std::unique_ptr<OutputFile>> AnchoredFileSystem::open_append(const std::string& path,
                                                                    std::uint64_t& size) {
    auto file = as_named(base_.open_append(held(path), size));
    if (!file || held_.empty()) return file;
    return std::unique_ptr<OutputFile>(std::make_unique<NamedFile>(
        std::move(file).value(), [this](Error error) { return as_named(std::move(error)); }));
}
Result<> AnchoredFileSystem::rename(const std::string& from, const std::string& to) {
    return as_named(base_.rename(held(from), held(to)));
}
Result<> AnchoredFileSystem::replace(const std::string& from, const std::string& to) {
    return as_named(base_.replace(held(from), held(to)));
}
Result<> AnchoredFileSystem::sync_folder(const std::string& path) {
    return as_named(base_.sync_folder(held(path)));
}
Result<> AnchoredFileSystem::make_folders(const std::string& path) {
    return as_named(base_.make_folders(held(path)));
}
Result<bool> AnchoredFileSystem::make_marked_folder(const std::string& path, const std::string& marker) {
    return as_named(base_.make_marked_folder(held(path), marker));
}
Result<> AnchoredFileSystem::remove(const std::string& path) { return as_named(base_.remove(held(path))); }
Result<> AnchoredFileSystem::remove_empty_folder(const std::string& path) {
    // The folder itself has no other name than its path.
    if (!held_.empty() && path == root_) return is_held(path) ? base_.remove_empty_folder(path) : success();
    return as_named(base_.remove_empty_folder(held(path)));
}
Result<> AnchoredFileSystem::truncate(const std::string& path, std::uint64_t size) {
    return as_named(base_.truncate(held(path), size));
}
Result<std::unique_ptr<NewFiles>> AnchoredFileSystem::open_new(const std::string& folder) {
    return as_named(base_.open_new(held(folder)));
}

}  // namespace twinrun
